"use strict";
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const words = {
    "seen": "sees it, rightly", "unseen": "does not see it, rightly",
    "wrongly-seen": "sees it and should not", "wrongly-hidden": "does not see it and should",
    "seen-unjudged": "sees it", "unseen-unjudged": "does not see it",
  };

  // The pictures: what a cell says, under the pointer or at the arrow keys.
  for (const picture of all(".picture")) {
    const area = picture.querySelector(".scroll"), readout = picture.querySelector(".readout");
    const slots = all(".holds th[title]", picture), rows = all("tbody tr[data-query]", picture);
    const cells = rows.map((row) => all("td.c", row));
    let at = null;
    const tell = (y, x) => {
      const slot = slots[x].title, state = y < 0 ? "" : words[cells[y][x].classList[1]];
      const sentence = y < 0 ? slot : slot + "; " + rows[y].dataset.query + " " + state;
      readout.textContent = sentence.charAt(0).toUpperCase() + sentence.slice(1) + ".";
    };
    const mark = (y, x) => {
      if (at) cells[at[0]][at[1]].classList.remove("at");
      at = [y, x];
      cells[y][x].classList.add("at");
      cells[y][x].scrollIntoView({ block: "nearest", inline: "nearest" });
      tell(y, x);
    };
    picture.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("td.c"), head = event.target.closest(".holds th[title]");
      if (head) return tell(-1, slots.indexOf(head));
      const y = cell ? rows.indexOf(cell.parentElement) : -1;
      if (y >= 0) tell(y, cells[y].indexOf(cell));
    });
    area.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey || !rows.length || !slots.length) return;
      event.preventDefault();
      event.stopPropagation();
      const marked = rows.findIndex((row) => row.classList.contains("marked"));
      const [y, x] = at || [Math.max(marked, 0) - move[0], -move[1]];
      const within = (value, length) => Math.min(Math.max(value, 0), length - 1);
      mark(within(y + move[0], rows.length), within(x + move[1], slots.length));
    });
    const wrong = picture.querySelector("td[class*=wrongly], td.bad");
    if (wrong) area.scrollLeft = Math.max(0, wrong.offsetLeft + wrong.offsetWidth - area.clientWidth + 40);
    area.addEventListener("blur", () => {
      if (at) cells[at[0]][at[1]].classList.remove("at");
      at = null;
    });
  }

  // Left and right go from part to part of the page.
  const parts = all("[data-part]");
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const taken = event.target.closest && event.target.closest(".scroll, input, textarea, select");
    if (!step || !parts.length || taken || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const here = document.activeElement && document.activeElement.closest("[data-part]");
    let number = parts.indexOf(here);
    if (number < 0) {
      const above = parts.filter((part) => part.getBoundingClientRect().top < 8).length;
      number = step > 0 ? above - 1 : above;
    }
    const next = parts[number + step];
    if (!next) return;
    event.preventDefault();
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
  });

  // Commands are copied with a button.
  for (const line of all("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = line.querySelector("code").textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(line.querySelector("code"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    line.append(button);
  }

  // On paper nothing is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
    folded = [];
  });
})();
