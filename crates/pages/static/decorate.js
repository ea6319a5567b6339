// What the server cannot know: the reader's time zone, and that there is a script to copy and act with.
// Run on the page once and on every fresh copy of it before the two are compared.
import { make } from "./make.js";

const main = document.getElementById("main");
// Ages are told by the server's clock.
const ahead = main?.dataset.now ? Date.parse(main.dataset.now) - Date.now() : 0;
export const now = () => Date.now() + ahead;

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dated = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });

export function length(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const isToday = (at) => at.toDateString() === new Date(now()).toDateString();

function words(at, show) {
  const gone = now() - at;
  if (show === "elapsed") return length(gone);
  if (show === "ago") {
    if (Math.abs(gone) < 1500) return "now";
    return gone > 0 ? `${length(gone)} ago` : `in ${length(-gone)}`;
  }
  return (isToday(at) ? clock : dated).format(at);
}

export function tellTimes(within) {
  for (const time of within.querySelectorAll("time[data-show]")) {
    const text = words(new Date(time.dateTime), time.dataset.show);
    if (time.textContent !== text) time.textContent = text;
  }
}

export function decorate(page) {
  tellTimes(page);
  for (const mark of page.querySelectorAll("[data-clock]")) mark.textContent = minutes.format(new Date(mark.dataset.clock));
  for (const pre of page.querySelectorAll("pre.copy:not(:has(button))")) {
    pre.append(make("button", { type: "button", "data-copy": pre.textContent }, "Copy"));
  }
  for (const id of ["find", "help", "save-view"]) page.getElementById(id)?.removeAttribute("hidden");
  tellTheme(page);
}

export function tellTheme(page) {
  const { theme } = document.documentElement.dataset;
  for (const button of page.querySelectorAll("button.theme")) {
    button.hidden = false;
    button.textContent = `Theme${theme ? `: ${theme}` : ""}`;
  }
}

// While the server is away nothing is known to have got older.
setInterval(() => { if (!document.hidden && !document.querySelector(".live.lost")) tellTimes(document); }, 1000);
