// Creates elements, dialogs and toasts. Text is never interpreted as markup.

export function make(tag, members = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(members)) {
    if (name in element) element[name] = value; else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Shows a modal dialog that is removed when it is closed.
export function dialog(members, ...children) {
  const element = make("dialog", members, ...children);
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  return element;
}

// Shows a short message; an error stays twice as long. `duration_ms: 0` keeps it until `close`.
export function toast(text, { bad = false, action, act, duration_ms = 5000 } = {}) {
  const message = make("span", {}, text);
  const box = make("div", { className: bad ? "toast bad" : "toast" }, message);
  if (action) box.append(make("button", { type: "button", onclick: () => { box.remove(); act(); } }, action));
  document.getElementById("toasts").append(box);
  if (duration_ms) setTimeout(() => box.remove(), bad ? duration_ms * 2 : duration_ms);
  return { update: (text) => { message.textContent = text; }, close: () => box.remove() };
}
