# The agent's image: the container beside the user's in each pod of a job on Kubernetes.
# deployments/README.md says how to build it; the context is the root of the repository.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Versions of what the package is built with; pip reads the one or the other, by its age.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt
RUN ["python", "-m", "venv", "--without-pip", "/opt/agent"]
COPY constraints.txt ./
COPY deployments/images/agent-requirements.txt deployments/images/
RUN ["python", "-m", "pip", "--python", "/opt/agent/bin/python", "install", "--compile", \
     "--requirement", "deployments/images/agent-requirements.txt"]
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY blocks blocks
COPY examples examples
COPY flows flows
COPY prefect_bt prefect_bt
# --no-deps: a node needs neither Prefect nor Docker's or Kubernetes' client.
RUN ["python", "-m", "pip", "--python", "/opt/agent/bin/python", "install", "--compile", \
     "--no-deps", "."]

FROM ${BASE}
RUN ["useradd", "--uid", "65532", "--user-group", "--no-create-home", "--home-dir", "/tmp", \
     "--shell", "/usr/sbin/nologin", "agent"]
COPY --from=build /opt/agent /opt/agent
# The root file system may be read-only: only /tmp and the pod's volumes are written.
ENV PATH=/opt/agent/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="prefect-bt agent" \
      org.opencontainers.image.description="What runs beside a training job's container in a pod" \
      org.opencontainers.image.documentation="https://prefect-bt.readthedocs.io/en/stable/" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "prefect_bt.node_agent.pod"]
