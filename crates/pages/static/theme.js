// Loaded before the first paint, so that the selected theme does not flash.
try {
  const theme = localStorage.getItem("windlass.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without local storage the system's theme applies.
}
