"""Do in Prefect's web pages what a person does: read labels, type, press buttons.

Prefect 3.9.1 serves two UIs from one server: the classic one (Vue) at `/`, and the newer one
(React) at `/v2`. `/` alone redirects to the one that the cookie `prefect_ui_version` names, by
default the newer; every other path is that of its UI. Elements are found by what they show: labels,
and the texts of buttons, tabs and menus.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tests.browser import PATIENCE, Page

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
  // The first such element in the smallest part of the page that holds the field's label, too;
  // a part that also holds an earlier field is too large.
  const beside = (field, selector, fits) => {
    const labels = [...document.querySelectorAll("label, h3")].filter(shown);
    const index = labels.findIndex((one) => text(one) == field);
    let place = labels[index];
    while (place && !(index > 0 && place.contains(labels[index - 1]))) {
      const found = [...place.querySelectorAll(selector)].find((one) => shown(one) && fits(one));
      if (found) return found;
      place = place.parentElement;
    }
  };
  const control = (field) => beside(field, CONTROLS, () => true);
  const tab = (field, wanted) => beside(field, "button", (one) => text(one) == wanted);
  // The page's own menu: the first button without words outside the sidebar.
  const menu = () => [...document.querySelectorAll("button")].find(
    (one) => shown(one) && ["", "Open menu"].includes(text(one)) && one.querySelector("svg")
      && !one.closest("nav, [data-sidebar]"));
  // A choice may take effect only once a request that it causes is answered.
  let last = 0;
  const active = () => { last = performance.now(); };
  const isQuiet = () => ui.pending == 0 && performance.now() - last > 300;
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
    active();
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
  const focus = (field) =>
    press(control(field)) && control(field).contains(document.activeElement);
  // Choose in a list: a select element, or a button that opens one.
  const choose = (field, wanted) => {
    const list = control(field);
    if (list?.tagName != "SELECT") return press(all("[role=option]", wanted)[0]);
    const option = [...list.options].find((one) => text(one) == wanted);
    if (!option) return false;
    active();
    list.value = option.value;
    list.dispatchEvent(new Event("input", {bubbles: true}));
    list.dispatchEvent(new Event("change", {bubbles: true}));
    return true;
  };
  const isList = (field) => ["SELECT", "BUTTON"].includes(control(field)?.tagName);
  const opens = (field) => control(field)?.tagName == "BUTTON" && control(field);
  return {button, choose, content, control, dialog, focus, isList, menu, opens, press, state, tab,
          active, isQuiet, busy: false, pending: 0, sent: []};
})();
// Record requests, and those that change something with their answers.
(() => {
  const begin = () => { ui.pending += 1; ui.active(); };
  const end = () => { ui.pending -= 1; ui.active(); };
  const note = (method, url, body, status, answer) => {
    if (status == 503) ui.busy = true;
    if (method != "GET") ui.sent.push({method, path: new URL(url).pathname, body, status, answer});
  };
  const original = window.fetch;
  window.fetch = async (...given) => {
    begin();
    try {
      const request = new Request(...given), body = await request.clone().text();
      const answer = await original(request);
      note(request.method, request.url, body, answer.status, await answer.clone().text());
      return answer;
    } finally { end(); }
  };
  const {open, send} = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.asked = [method.toUpperCase(), new URL(url, location.href).href];
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    begin();
    this.addEventListener("load", () => note(...this.asked, body, this.status, this.response));
    this.addEventListener("loadend", end);
    return send.call(this, body);
  };
})();
"""
LOADS = 5
"""How often a page is loaded at most until it shows what is expected."""
COMPLAINT = r"/^([\w ]+ is required|Name must only .*|Property must be .*)$/m"
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
        self._page.open(f"{self._address}{path}")
        self.wait_for_page(condition)

    def wait_for_page(self, condition: str) -> None:
        """Wait until the condition holds; load the page again from time to time.

        Its SQLite may be busy: the server then answers 503, of which a page may not recover.
        """
        for _ in range(LOADS):
            load_again = time.monotonic() + PATIENCE / LOADS
            while time.monotonic() < load_again:
                if self._page.run(f"Boolean(window.ui && {condition})"):
                    return
                time.sleep(0.1)
            self._page.open(self._page.run("location.href"))
        self.wait_for(condition)

    def wait_for(self, condition: str) -> None:
        """Wait until the condition holds; without end, say what the page shows and has sent."""
        try:
            self._page.wait_for(condition)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe_requests()}") from None

    def press(self, element: str) -> None:
        """Press the element of an expression as soon as it can be pressed."""
        self.wait_for(f"ui.press({element})")

    def choose_tab(self, field: str, text: str) -> None:
        self.press(f"ui.tab({json.dumps(field)}, {json.dumps(text)})")

    def fill(self, field: str, value: str) -> None:
        """Replace what the field holds."""
        label, typed = json.dumps(field), json.dumps(value)
        deadline = time.monotonic() + PATIENCE
        self._type(label, value)
        while not self._page.run(f"ui.content({label}) == {typed}"):  # drawn anew meanwhile
            assert time.monotonic() < deadline, self._page.run(f"ui.content({label})")
            self._type(label, value)

    def _type(self, label: str, value: str) -> None:
        self.wait_for(f"ui.focus({label})")
        select_all = {"key": "a", "code": "KeyA", "modifiers": 2, "commands": ["selectAll"]}
        for kind in ("keyDown", "keyUp"):
            self._page.call("Input.dispatchKeyEvent", type=kind, **select_all)
        self._page.call("Input.insertText", text=value)

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

    def send(self, fill: Callable[[], None], button: str, request: str) -> dict[str, Any]:
        """Open and fill in a form, press the button, and return the answer to the request.

        `request` is a method and the end of a path. Start anew where the server was too busy (503);
        any other refusal fails.
        """
        method, path = request.split()
        fits = f"one.method == '{method}' && one.path.replace(/\\/$/, '').endsWith('{path}')"
        answer = f"ui.sent.find((one) => {fits})"
        deadline = time.monotonic() + PATIENCE
        while True:
            fill()
            if self._page.run("ui.busy") and time.monotonic() < deadline:
                continue
            self.press(button)
            self.wait_for(f"{answer} || {COMPLAINT}.test(document.body.innerText)")
            sent, shown = self._page.run(answer), self._page.run("document.body.innerText")
            assert sent, f"the page does not send the form:\n{shown}"
            if sent["status"] != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                break
        assert sent["status"] < HTTPStatus.BAD_REQUEST, f"{self.describe_requests()}\n{shown}"
        return json.loads(sent["answer"]) if sent["answer"] else {}


def button(text: str) -> str:
    """Return the expression of the button, link or item of a menu with this text."""
    return f"ui.button({json.dumps(text)})"


class BlockPages:
    """The forms and the page of a block."""

    def __init__(self, ui: PrefectUI) -> None:
        self.ui = ui

    def create(self, slug: str, name: str, fill: Callable[[], None]) -> str:
        """Create a block with the form of its type; return its id."""

        def fill_in() -> None:
            label = self.ui.words.block_name
            self.ui.open(f"/blocks/catalog/{slug}/create", f"ui.control({json.dumps(label)})")
            self.ui.fill(label, name)
            fill()
            self.ui.wait_for("ui.isQuiet()")

        answer = self.ui.send(fill_in, button(self.ui.words.create_block), "POST /block_documents")
        return str(answer["id"])

    def edit(self, block_id: str, name: str, fill: Callable[[], None]) -> None:
        """Go to the block's page, choose Edit in its menu, and save what is filled in."""

        def fill_in() -> None:
            shown = f"ui.menu() && document.body.innerText.includes({json.dumps(name)})"
            self.ui.open(f"/blocks/block/{block_id}", shown)
            self.ui.press("ui.menu()")
            self.ui.press(button("Edit"))
            self.ui.wait_for_page("location.pathname.endsWith('/edit') && ui.button('Save')")
            fill()
            self.ui.wait_for("ui.isQuiet()")

        self.ui.send(fill_in, button("Save"), f"PATCH /block_documents/{block_id}")


class RunPages:
    """The form of a deployment, and the page of a run."""

    def __init__(self, ui: PrefectUI, deployment_id: str) -> None:
        self.ui, self._deployment_id = ui, deployment_id

    def submit(self, fill: Callable[[], None]) -> str:
        """Go to the deployment's page, choose a run with parameters and submit it.

        Return the run's id.
        """
        deployment = f"/deployments/deployment/{self._deployment_id}"

        def fill_in() -> None:
            self.ui.open(deployment, "ui.button('Run')")
            self.ui.press(button("Run"))
            self.ui.press(button("Custom run"))
            self.ui.wait_for_page("location.pathname.endsWith('/run') && ui.button('Submit')")
            fill()
            self.ui.wait_for("ui.isQuiet()")

        request = f"POST /deployments/{self._deployment_id}/create_flow_run"
        return str(self.ui.send(fill_in, button("Submit"), request)["id"])

    def open(self, run_id: str) -> None:
        self.ui.open(f"/runs/flow-run/{run_id}", "document.body.innerText.includes('Task Runs')")

    def wait_for_state(self, name: str) -> None:
        """Wait until the open page of a run shows the state."""
        self.ui.wait_for_page(f"ui.state({json.dumps(name)})")

    def cancel(self, run_id: str) -> None:
        self._change_state(run_id, "Cancel", self.ui.words.confirm_cancel)

    def retry(self, run_id: str) -> None:
        self._change_state(run_id, "Retry", "Retry")

    def _change_state(self, run_id: str, action: str, confirmation: str) -> None:
        def choose_action() -> None:
            self.open(run_id)
            for element in self.ui.words.run_actions:
                self.ui.press(element)
            self.ui.press(button(action))

        dialog = f"ui.dialog({json.dumps(confirmation)})"
        self.ui.send(choose_action, dialog, f"POST /flow_runs/{run_id}/set_state")
