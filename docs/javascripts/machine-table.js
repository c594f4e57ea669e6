// The table of machines: search by any word in a row, sort by any column. Without scripts it is a plain table.
(function () {
  "use strict";
  const table = document.getElementById("machines");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);

  const label = document.createElement("label");
  const field = document.createElement("input");
  const said = document.createElement("output");
  label.className = "machine-search";
  label.append("Search ", field, " ", said);
  field.type = "search";
  field.placeholder = "h100, Amazon, 2024 …";
  table.parentNode.parentNode.insertBefore(label, table.parentNode);

  function search() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    said.textContent = shown + " of " + rows.length;
  }

  function value(row, column) {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replace(/,/g, ""));
    return row.cells[column].className === "number" ? (isNaN(number) ? null : number) : text.toLowerCase();
  }

  function sort(column, down) {
    const sign = down ? -1 : 1;
    rows.sort(function (one, other) {
      const a = value(one, column), b = value(other, column);
      // What is not known stands last, whichever way.
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
    });
    body.append(...rows);
  }

  Array.from(table.tHead.rows[0].cells).forEach(function (cell, column) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", function () {
      const now = cell.getAttribute("aria-sort");
      // Numbers are asked for largest first.
      const down = now ? now === "ascending" : rows.some((row) => row.cells[column].className === "number");
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(column, down);
    });
  });
  field.addEventListener("input", search);
  search();
})();
