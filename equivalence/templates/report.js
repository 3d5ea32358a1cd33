"use strict";

// The state of the table lives in the address (#sort=gradient&order=ascending&filter=bias&different=1),
// so that a view can be linked to.
const table = document.querySelector("#parameters");
const filter = document.querySelector("#filter");
const different = document.querySelector("#different");

function state() {
  return new URLSearchParams(location.hash.slice(1));
}

function change(values) {
  const next = state();
  for (const [key, value] of Object.entries(values)) {
    if (value) next.set(key, value); else next.delete(key);
  }
  history.replaceState(null, "", "#" + next);
  show();
}

function compare(key, descending) {
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const left = a.dataset[key], right = b.dataset[key];
    if (key === "name") return sign * left.localeCompare(right, undefined, { numeric: true });
    // What was not compared comes last, whichever the order.
    if (left === "" || right === "") return (left === "") - (right === "");
    return sign * (left - right);
  };
}

function show() {
  if (!table) return;
  const now = state(), key = now.get("sort") || "largest";
  const descending = now.has("order") ? now.get("order") === "descending" : key !== "name" && key !== "step";
  const words = (now.get("filter") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const body = table.tBodies[0], rows = [...body.rows].sort(compare(key, descending));
  let shown = 0;
  for (const row of rows) {
    const name = row.dataset.name.toLowerCase();
    row.hidden = !words.every(word => name.includes(word)) || (now.get("different") && !(row.dataset.largest > 0));
    shown += !row.hidden;
  }
  body.append(...rows);
  for (const head of table.tHead.rows[0].cells) {
    if (head.dataset.key === key) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  document.querySelector("#shown").textContent = `${shown} of ${rows.length} shown`;
  if (document.activeElement !== filter) filter.value = now.get("filter") || "";
  different.checked = Boolean(now.get("different"));
}

if (table) {
  // A link to a view of the table shows the table.
  if (location.hash.length > 1) table.closest("details").open = true;
  filter.addEventListener("input", () => change({ filter: filter.value }));
  different.addEventListener("change", () => change({ different: different.checked ? "1" : "" }));
  for (const head of table.tHead.rows[0].cells) {
    head.querySelector("button").addEventListener("click", () => {
      const order = head.getAttribute("aria-sort");
      const natural = head.dataset.key === "name" || head.dataset.key === "step" ? "ascending" : "descending";
      const opposite = order === "descending" ? "ascending" : "descending";
      change({ sort: head.dataset.key, order: order ? opposite : natural });
    });
  }
  addEventListener("hashchange", show);
  show();
}

// Reading values off a chart: the step under the pointer, with the value of every line.
const series = JSON.parse(document.querySelector("#series").textContent);

for (const plane of document.querySelectorAll(".plane")) {
  const chart = series[plane.dataset.chart];
  const cursor = document.createElement("div"), reading = document.createElement("div");
  cursor.className = "cursor";
  reading.className = "reading";
  plane.addEventListener("pointermove", event => {
    const box = plane.getBoundingClientRect(), last = Math.max(chart.steps - 1, 1);
    const step = Math.min(Math.max(Math.round((event.clientX - box.left) / box.width * last), 0), chart.steps - 1);
    const place = chart.steps > 1 ? step / last : 0.5;
    const values = chart.lines.map(line => `${line.label} ${line.values[step] === null || line.values[step] === undefined ? "–" : Number(line.values[step].toPrecision(8))}`);
    reading.textContent = [`step ${step}`, ...values].join("  ·  ");
    cursor.style.left = `${place * 100}%`;
    reading.style.left = place < 0.5 ? `calc(${place * 100}% + 8px)` : "auto";
    reading.style.right = place < 0.5 ? "auto" : `calc(${(1 - place) * 100}% + 8px)`;
    plane.append(cursor, reading);
  });
  plane.addEventListener("pointerleave", () => { cursor.remove(); reading.remove(); });
}
