"use strict";

// Tabs: one panel at a time; without this script, and on paper, all of them are shown.
for (const list of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const show = (chosen) => {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !on;
    }
  };
  const moves = {
    ArrowRight: (at) => (at + 1) % tabs.length,
    ArrowLeft: (at) => (at + tabs.length - 1) % tabs.length,
    Home: () => 0,
    End: () => tabs.length - 1,
  };
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) show(tab);
  });
  list.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const tab = tabs[move(tabs.indexOf(document.activeElement))];
    show(tab);
    tab.focus();
  });
  list.hidden = false;
  show(tabs[0]);
}

// Sorting: by the number in a cell, else by its words; cells without a number stay last either way.
const compare = (a, b, sign) => {
  const [x, y] = [a, b].map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : null));
  if (x !== null && y !== null) return sign * (x - y);
  if (x === null && y === null && a.matches("th")) {
    return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  }
  return (x === null) - (y === null);
};
for (const button of document.querySelectorAll(".results thead button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const rising = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const at = head.cellIndex;
    const rows = [...body.rows].sort((a, b) => compare(a.cells[at], b.cells[at], rising ? 1 : -1));
    body.append(...rows);
  });
}

// Filters: rows and columns whose names hold any of the words.
const form = document.querySelector(".toolbar");
const words = (name) => form.elements[name].value.toLowerCase().split(/[\s,]+/).filter(Boolean);
const fits = (item, wanted) => !wanted.length || wanted.some((word) => item.dataset.name.includes(word));
const filter = () => {
  const [methods, datasets] = [words("method"), words("dataset")];
  const seen = { method: new Map(), dataset: new Map() };
  for (const table of document.querySelectorAll(".results")) {
    if (table.dataset.rows === "method") {
      for (const row of table.tBodies[0].rows) {
        row.hidden = !fits(row, methods);
        seen.method.set(row.dataset.name, !row.hidden);
      }
    }
    for (const head of table.querySelectorAll("thead th[data-name]")) {
      const hidden = !fits(head, datasets);
      seen.dataset.set(head.dataset.name, !hidden);
      for (const row of table.rows) row.cells[head.cellIndex].hidden = hidden;
    }
  }
  const told = (kind, plural) => {
    const all = [...seen[kind].values()];
    return `${all.filter(Boolean).length} of ${all.length} ${plural}`;
  };
  const active = methods.length || datasets.length;
  form.querySelector("output").value = active ? `${told("method", "methods")}, ${told("dataset", "data sets")}` : "";
};
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
filter();
