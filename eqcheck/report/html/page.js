"use strict";
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const words = {
    "seen": "attends to it, as it should", "unseen": "does not attend to it, as it should",
    "wrongly-seen": "attends to it and must not", "wrongly-hidden": "does not attend to it and must",
    "seen-unjudged": "attends to it", "unseen-unjudged": "does not attend to it",
  };

  // The pictures: what a cell says, under the pointer or at the arrow keys. A picture is looked into when it is used.
  const parts_of = (picture) => {
    const rows = all("tbody tr[data-slot]", picture);
    return {
      queries: all("th[data-query]", picture), rows, cells: rows.map((row) => all("td.c", row)),
      readout: picture.querySelector(".readout"),
    };
  };
  const tell = ({ queries, rows, cells, readout }, y, x) => {
    const what = rows[y].dataset.slot;
    const said = x < 0 ? what : what + "; " + queries[x].dataset.query + " " + words[cells[y][x].classList[1]];
    readout.textContent = said.charAt(0).toUpperCase() + said.slice(1) + ".";
  };
  document.addEventListener("pointerover", (event) => {
    const one = event.target.closest && event.target.closest(".picture td.c, .picture tbody th");
    if (!one) return;
    const picture = parts_of(one.closest(".picture")), y = picture.rows.indexOf(one.parentElement);
    if (y >= 0) tell(picture, y, picture.cells[y].indexOf(one));
  });
  const unmark = (area) => all(".at", area).forEach((cell) => cell.classList.remove("at"));
  document.addEventListener("keydown", (event) => {
    const area = event.target.closest && event.target.closest(".picture > .scroll");
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!area || !move || event.ctrlKey || event.metaKey || event.altKey) return;
    const picture = parts_of(area.parentElement), { rows, cells } = picture;
    if (!rows.length || !picture.queries.length) return;
    event.preventDefault();
    let y = rows.findIndex((row) => row.querySelector(".at"));
    let x = y < 0 ? -1 : cells[y].findIndex((cell) => cell.classList.contains("at"));
    const within = (value, length) => Math.min(Math.max(value, 0), length - 1);
    if (y < 0) [y, x] = [0, Math.max(picture.queries.findIndex((one) => one.classList.contains("marked")), 0)];
    else [y, x] = [within(y + move[0], rows.length), within(x + move[1], picture.queries.length)];
    unmark(area);
    cells[y][x].classList.add("at");
    cells[y][x].scrollIntoView({ block: "nearest", inline: "nearest" });
    tell(picture, y, x);
  });
  document.addEventListener("focusout", (event) => {
    const area = event.target.closest && event.target.closest(".picture > .scroll");
    if (area) unmark(area);
  });
  // Where a picture is wider than the page, what is wrong comes into view when the picture does.
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      watch.unobserve(target);
      const wrong = target.querySelector("td[class*=wrongly], th.marked");
      if (wrong && target.scrollWidth > target.clientWidth) {
        target.scrollLeft = Math.max(0, wrong.offsetLeft + wrong.offsetWidth - target.clientWidth + 40);
      }
    }
  });
  for (const area of all(".picture > .scroll")) watch.observe(area);

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

  // Steps, such as the calls of a trace, are shown one at a time.
  const steps = all("[data-step]");
  if (steps.length) {
    const within = all(".calls a");
    const links = steps.map((step) => within.find((link) => link.hash === "#" + step.id));
    let shown = -1;
    const show = (number) => {
      if (number < 0 || number >= steps.length || number === shown) return;
      shown = number;
      steps.forEach((step, other) => step.classList.toggle("on", other === number));
      links.forEach((link, other) => {
        if (other === number) link.setAttribute("aria-current", "step");
        else link.removeAttribute("aria-current");
      });
      links[number].scrollIntoView({ block: "nearest", inline: "nearest" });
    };
    const named = () => steps.findIndex((step) => "#" + step.id === location.hash);
    const go = (number) => {
      show(number);
      if (shown === number) history.replaceState(null, "", "#" + steps[number].id);
    };
    document.documentElement.classList.add("stepping");
    show(named() >= 0 ? named() : Math.max(steps.findIndex((step) => "first" in step.dataset), 0));
    links.forEach((link, number) => link.addEventListener("click", (event) => {
      event.preventDefault();
      go(number);
    }));
    addEventListener("hashchange", () => show(named()));
    document.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, k: -1, j: 1 }[event.key];
      const inside = event.key.length === 1 ? "input, textarea, select" : ".scroll, input, textarea, select";
      const taken = event.target.closest && event.target.closest(inside);
      if (!step || taken || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
      event.preventDefault();
      go(shown + step);
    });
  }

  // Other failing cases of a cause are shown one at a time.
  for (const walk of all("[data-walk]")) {
    const cases = all("[data-other]", walk), bar = document.createElement("p");
    let at = 0;
    const show = (number) => {
      at = (number + cases.length) % cases.length;
      cases.forEach((one, other) => { one.hidden = other !== at; });
    };
    for (const [words, step] of [["← Previous", -1], ["Next →", 1]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.addEventListener("click", () => show(at + step));
      bar.append(button, " ");
    }
    if (cases.length > 1) cases[0].before(bar);
    show(0);
  }

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
