"""Do in Prefect's web pages what a person does: read labels, type, press buttons.

Prefect 3.9.1 serves two UIs from one server: the classic one (Vue) at `/`, and the newer one
(React) at `/v2`. `/` alone redirects to the one that the cookie `prefect_ui_version` names, by
default the newer; every other path is that of its UI. Elements are found by what they show: labels,
and the texts of buttons, tabs and menus.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.browser import Page

SCRIPT = """
window.ui = (() => {
  const CONTROLS = "input, textarea, select, [contenteditable=true], [aria-haspopup=listbox]";
  const shown = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility != "hidden";
  };
  const text = (element) => element.innerText.replace(/\\s*\\(Optional\\)$/, "").trim();
  const all = (selector, wanted) =>
    [...document.querySelectorAll(selector)].filter((one) => shown(one) && text(one) == wanted);
  const button = (wanted) => all("button, a, [role=menuitem]", wanted).at(-1);
  const dialog = (wanted) => all("[role=dialog] button, [role=alertdialog] button", wanted).at(-1);
  // The first such element in the smallest part of the page that holds the field's label, too.
  const beside = (field, selector, fits) => {
    const inside = (place) =>
      [...place.querySelectorAll(selector)].find((one) => shown(one) && fits(one));
    let place = all("label, h3", field)[0];
    while (place && !inside(place)) place = place.parentElement;
    return place && inside(place);
  };
  const control = (field) => beside(field, CONTROLS, () => true);
  const tab = (field, wanted) => beside(field, "button", (one) => text(one) == wanted);
  // The page's own menu: the first button without words outside the sidebar.
  const menu = () => [...document.querySelectorAll("button")].find(
    (one) => shown(one) && ["", "Open menu"].includes(text(one)) && one.querySelector("svg")
      && !one.closest("nav, [data-sidebar]"));
  const state = (name) => all("span, div", name).length > 0;
  const content = (field) => control(field)?.value ?? control(field)?.innerText;
  // Press the element as the mouse does, if it is enabled and no other element covers it.
  const press = (element) => {
    if (!element || element.disabled) return false;
    element.scrollIntoView({block: "center", behavior: "instant"});
    const box = element.getBoundingClientRect();
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    const top = document.elementFromPoint(x, y);
    if (!top || !element.contains(top)) return false;
    const at = {bubbles: true, cancelable: true, composed: true, view: window, detail: 1,
                clientX: x, clientY: y, pointerType: "mouse", isPrimary: true};
    top.dispatchEvent(new PointerEvent("pointerdown", {...at, buttons: 1}));
    top.dispatchEvent(new MouseEvent("mousedown", {...at, buttons: 1}));
    if (element.matches(CONTROLS)) element.focus();
    top.dispatchEvent(new PointerEvent("pointerup", at));
    top.dispatchEvent(new MouseEvent("mouseup", at));
    top.dispatchEvent(new MouseEvent("click", at));
    return true;
  };
  // Replace what the field holds, as the keys do: Ctrl-A, then the text.
  const type = (field, value) => {
    if (!press(control(field))) return false;
    if (!control(field).contains(document.activeElement)) return false;
    document.execCommand("selectAll");
    document.execCommand("insertText", false, value);
    return true;
  };
  // Choose in a list: a select element, or a button that opens one.
  const choose = (field, wanted) => {
    const list = control(field);
    if (list?.tagName != "SELECT") return press(all("[role=option]", wanted)[0]);
    const option = [...list.options].find((one) => text(one) == wanted);
    if (!option) return false;
    list.value = option.value;
    list.dispatchEvent(new Event("input", {bubbles: true}));
    list.dispatchEvent(new Event("change", {bubbles: true}));
    return true;
  };
  const isList = (field) => ["SELECT", "BUTTON"].includes(control(field)?.tagName);
  const opens = (field) => control(field)?.tagName == "BUTTON" && control(field);
  return {button, choose, content, control, dialog, isList, menu, opens, press, state, tab, type,
          sent: []};
})();
// Record what the page sends, and the answers.
(() => {
  const note = (method, url, body, status, answer) => {
    if (method != "GET") ui.sent.push({method, path: new URL(url).pathname, body, status, answer});
  };
  const original = window.fetch;
  window.fetch = async (...given) => {
    const request = new Request(...given), body = await request.clone().text();
    const answer = await original(request);
    note(request.method, request.url, body, answer.status, await answer.clone().text());
    return answer;
  };
  const {open, send} = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.asked = [method.toUpperCase(), new URL(url, location.href).href];
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    this.addEventListener("load", () => note(...this.asked, body, this.status, this.response));
    return send.call(this, body);
  };
})();
"""
COMPLAINT = r"/^([\w ]+ is required|Name must only .*)$/m"
"""What the UIs show below a field with which they do not save."""


@dataclass(frozen=True)
class Words:
    """What one of the UIs calls the things of both."""

    prefix: str
    block_name: str
    create_block: str
    run_actions: tuple[str, ...]
    """What to press before an action of a run's page is shown."""
    confirm_cancel: str


UIS: Mapping[str, Words] = {
    "classic": Words("", "Block Name", "Create", (), "Confirm"),
    "react": Words("/v2", "Name", "Save", ("ui.menu()",), "Cancel Flow Run"),
}


class PrefectUI:
    """One of the UIs of a server, in one tab of a browser."""

    def __init__(self, page: Page, address: str, words: Words) -> None:
        self._page, self.words = page, words
        self._address = f"{address}{words.prefix}"
        page.call("Page.addScriptToEvaluateOnNewDocument", source=SCRIPT)

    def sign_in(self, password: str) -> None:
        """Give the server's password in the form that every page shows without it."""
        self.open("/blocks", "document.querySelector('input[type=password]')")
        self._page.run("document.querySelector('input[type=password]').focus()")
        self._page.call("Input.insertText", text=password)
        self.press("document.querySelector('button[type=submit]')")
        self.wait_for("!document.querySelector('input[type=password]')")
        self.wait_for("document.body.innerText.includes('Dashboard')")

    def open(self, path: str, condition: str) -> None:
        self._page.open_app(f"{self._address}{path}", condition)

    def wait_for(self, condition: str) -> None:
        """Wait until the condition holds; without end, say what the page shows and has sent."""
        try:
            self._page.wait_for(condition)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe_requests()}") from None

    def press(self, element: str) -> None:
        """Press the element of an expression as soon as it can be pressed."""
        self.wait_for(f"ui.press({element})")

    def press_button(self, text: str) -> None:
        self.press(f"ui.button({json.dumps(text)})")

    def choose_tab(self, field: str, text: str) -> None:
        self.press(f"ui.tab({json.dumps(field)}, {json.dumps(text)})")

    def fill(self, field: str, value: str) -> None:
        """Replace what the field holds."""
        label, typed = json.dumps(field), json.dumps(value)
        self.wait_for(f"ui.type({label}, {typed}) && ui.content({label}) == {typed}")

    def choose(self, field: str, option: str) -> None:
        """Choose in the field's list, once it has the option."""
        label = json.dumps(field)
        self.wait_for(f"ui.isList({label})")
        if self._page.run(f"Boolean(ui.opens({label}))"):
            self.press(f"ui.opens({label})")
        self.wait_for(f"ui.choose({label}, {json.dumps(option)})")

    def show_requests(self) -> list[dict[str, Any]]:
        """Return the requests of this page that change something, with their answers."""
        return self._page.run("ui.sent")

    def describe_requests(self) -> str:
        queries = ("/filter", "/paginate", "/count", "/history", "/validate", "/lateness")
        found = [one for one in self.show_requests() if not one["path"].endswith(queries)]
        return "\n".join(
            f"{one['method']} {one['path']} {one['body']}: {one['status']} {one['answer']}"[:2000]
            for one in found
        )

    def wait_for_answer(self, method: str, path: str) -> dict[str, Any]:
        """Return the answer to the page's request, whose path has this end; a refusal fails."""
        wanted = f"one.method == {method!r} && one.path.replace(/\\/$/, '').endsWith({path!r})"
        found = f"ui.sent.find((one) => {wanted})"
        self._page.wait_for(f"{found} || {COMPLAINT}.test(document.body.innerText)")
        sent = self._page.run(found)
        shown = self._page.run("document.body.innerText")
        assert sent, f"the page does not send the form:\n{shown}"
        assert sent["status"] < 300, f"{self.describe_requests()}\n{shown}"
        return json.loads(sent["answer"]) if sent["answer"] else {}


class BlockPages:
    """The forms and the page of a block."""

    def __init__(self, ui: PrefectUI) -> None:
        self.ui = ui

    def create(self, slug: str, name: str, fields: Mapping[str, str]) -> str:
        """Create a block with the form of its type; return its id."""
        self.open_create_form(slug)
        self.ui.fill(self.ui.words.block_name, name)
        for field, value in fields.items():
            self.ui.fill(field, value)
        return self.save_new()

    def open_create_form(self, slug: str) -> None:
        ready = f"ui.control({json.dumps(self.ui.words.block_name)})"
        self.ui.open(f"/blocks/catalog/{slug}/create", ready)

    def save_new(self) -> str:
        self.ui.press_button(self.ui.words.create_block)
        return str(self.ui.wait_for_answer("POST", "/block_documents")["id"])

    def open_edit_form(self, block_id: str, name: str) -> None:
        """Go to the block's page and choose Edit in its menu."""
        shown = f"ui.menu() && document.body.innerText.includes({json.dumps(name)})"
        self.ui.open(f"/blocks/block/{block_id}", shown)
        self.ui.press("ui.menu()")
        self.ui.press_button("Edit")
        self.ui.wait_for("location.pathname.endsWith('/edit') && ui.button('Save')")

    def edit(self, block_id: str, name: str, fields: Mapping[str, str]) -> None:
        self.open_edit_form(block_id, name)
        for field, value in fields.items():
            self.ui.fill(field, value)
        self.ui.press_button("Save")
        self.ui.wait_for_answer("PATCH", f"/block_documents/{block_id}")


class RunPages:
    """The form of a deployment, and the page of a run."""

    def __init__(self, ui: PrefectUI) -> None:
        self.ui = ui

    def open_run_form(self, deployment_id: str) -> None:
        """Go to the deployment's page and choose a run with parameters."""
        self.ui.open(f"/deployments/deployment/{deployment_id}", "ui.button('Run')")
        self.ui.press_button("Run")
        self.ui.press_button("Custom run")
        self.ui.wait_for("location.pathname.endsWith('/run') && ui.button('Submit')")

    def submit(self, deployment_id: str) -> str:
        """Submit the form; return the run's id."""
        self.ui.press_button("Submit")
        path = f"/deployments/{deployment_id}/create_flow_run"
        return str(self.ui.wait_for_answer("POST", path)["id"])

    def open_run(self, run_id: str) -> None:
        self.ui.open(f"/runs/flow-run/{run_id}", "document.body.innerText.includes('Task Runs')")

    def wait_for_state(self, name: str) -> None:
        """Wait until the open page of a run shows the state."""
        self.ui.wait_for(f"ui.state({json.dumps(name)})")

    def cancel(self) -> None:
        self._act("Cancel", self.ui.words.confirm_cancel)

    def retry(self) -> None:
        self._act("Retry", "Retry")

    def _act(self, action: str, confirmation: str) -> None:
        for element in self.ui.words.run_actions:
            self.ui.press(element)
        self.ui.press_button(action)
        self.ui.press(f"ui.dialog({json.dumps(confirmation)})")
