// The keyboard in groups of buttons.

const groups = new WeakSet();

// Makes a group a single stop of the Tab key: the item that had the focus last. Returns a function that lists the items.
export function singleStop(group, selector) {
  const items = () => [...group.querySelectorAll(selector)];
  const settle = (stop) =>
    items().forEach((item) => {
      item.tabIndex = item === stop ? 0 : -1;
    });
  settle(items().find((item) => item.getAttribute("aria-pressed") === "true") ?? items()[0]);
  if (!groups.has(group))
    group.addEventListener("focusin", ({ target }) => {
      if (items().includes(target)) settle(target);
    });
  return items;
}

// A single stop in which the arrow keys move, and Home and End move to the ends. Call roving again when the group has new
// items. With `columns`, the arrows up and down move by a row.
export function roving(group, selector = "button", columns = null) {
  const items = singleStop(group, selector);
  if (groups.has(group)) return group;
  groups.add(group);
  group.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(event.target);
    const moves = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      Home: 0,
      End: all.length - 1,
      ...(columns ? { ArrowUp: at - columns, ArrowDown: at + columns } : {}),
    };
    if (at < 0 || !(event.key in moves)) return;
    all[moves[event.key]]?.focus();
    event.preventDefault();
  });
  return group;
}
