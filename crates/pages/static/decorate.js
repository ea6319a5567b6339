// Adds to a page what the server cannot render: times in the reader's time zone, and controls that need scripts.
// Runs on the page once and on every refreshed copy of it before the two are compared.
import { make } from "./make.js";

const main = document.getElementById("main");
// Relative times use the server's clock.
const clockOffset_ms = main?.dataset.now ? Date.parse(main.dataset.now) - Date.now() : 0;
export const now = () => Date.now() + clockOffset_ms;

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dated = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const withYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });

export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const WEEK_MS = 7 * 86400 * 1000;
const isToday = (at) => at.toDateString() === new Date(now()).toDateString();

function formatTime(at, show) {
  const age_ms = now() - at;
  if (show === "elapsed") return duration(age_ms);
  if (show === "ago") {
    if (Math.abs(age_ms) < 1500) return "now";
    // Beyond a week the date says more.
    if (Math.abs(age_ms) > WEEK_MS) return format(at);
    return age_ms > 0 ? `${duration(age_ms)} ago` : `in ${duration(-age_ms)}`;
  }
  return format(at);
}

function format(at) {
  if (isToday(at)) return clock.format(at);
  return (at.getFullYear() === new Date(now()).getFullYear() ? dated : withYear).format(at);
}

export function updateTimes(within) {
  for (const time of within.querySelectorAll("time[data-show]")) {
    const text = formatTime(new Date(time.dateTime), time.dataset.show);
    if (time.textContent !== text) time.textContent = text;
  }
}

export function decorate(page) {
  updateTimes(page);
  for (const mark of page.querySelectorAll("[data-clock]")) {
    const at = new Date(mark.dataset.clock);
    mark.textContent = (isToday(at) || mark.dataset.show === "clock" ? minutes : day).format(at);
  }
  for (const pre of page.querySelectorAll("pre.copy:not(:has(button))")) {
    pre.append(make("button", { type: "button", "data-copy": pre.textContent }, "Copy"));
  }
  for (const id of ["find", "help", "save-view"]) page.getElementById(id)?.removeAttribute("hidden");
  labelThemeButtons(page);
}

export function labelThemeButtons(page) {
  const { theme } = document.documentElement.dataset;
  for (const button of page.querySelectorAll("button.theme")) {
    button.hidden = false;
    button.textContent = `Theme${theme ? `: ${theme}` : ""}`;
  }
}

// Relative times stop while the connection is lost, because the data on the page is as old as the connection.
setInterval(() => { if (!document.hidden && !document.querySelector(".live.lost")) updateTimes(document); }, 1000);
