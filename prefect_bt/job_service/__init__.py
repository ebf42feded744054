"""The jobs of a store as a user of them sees: begin with `store_service`."""
