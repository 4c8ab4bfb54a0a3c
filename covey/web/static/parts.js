/* What all pages share: elements, numbers, the player of films and the theme. */
"use strict";
window.coveyParts = (() => {
  // ---------------------------------------------------------------- elements and numbers
  const SVG = "http://www.w3.org/2000/svg";
  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  }
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children.flat());
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children.flat());
  const whole = (x) => Number(x).toLocaleString("en");
  function number(x) {
    if (x === null || x === undefined) return "–";
    if (typeof x !== "number") return String(x);
    const size = Math.abs(x);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return x.toExponential(2);
    return x.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 6 : 4 });
  }
  function short(x) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(x) >= size) return +(x / size).toPrecision(4) + letter;
    }
    return x !== 0 && Math.abs(x) < 1e-3 ? x.toExponential().replace(/(\.\d{2})\d+/, "$1") : String(+x.toPrecision(4));
  }
  const interval = ([centre, low, high]) => (low === null || low === undefined ? number(centre)
    : `${number(centre)} [${number(low)}, ${number(high)}]`);
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "unknown";
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    return s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  }
  const size = (bytes) => (bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`);
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const table = (head, rows) => el("div", { class: "scroll" }, el("table", {},
    head.length ? el("thead", {}, el("tr", {}, head.map((each) => el("th", { scope: "col" }, each)))) : null,
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => (i ? el("td", {}, cell) : el("th", { scope: "row" }, cell))))))));

  const finite = (x) => x !== null && x !== undefined;

  // ---------------------------------------------------------------- films and themes
  /* An element that plays a film: GIF or MP4, by its address. */
  function player(uri, attributes, said) {
    if (/^data:image|\.(gif|png|webp)(\?|$)/.test(uri)) return el("img", { ...attributes, src: uri, alt: said });
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const film = el("video", { ...attributes, src: uri, controls: true, loop: true, muted: true, autoplay: !still, playsinline: true, "aria-label": said });
    film.muted = true; // browsers start only muted films
    return film;
  }
  /* The button that changes the theme. `begin` sets the theme of the user; `painted` is called after a change. */
  function themes(painted) {
    const root = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const button = el("button", { id: "theme", type: "button", onclick: () => {
      paint(root.dataset.theme === "dark" ? "light" : "dark");
      try { localStorage.setItem("covey-theme", root.dataset.theme); } catch { /* a page from disk may not store it */ }
    } });
    function set(name) {
      root.dataset.theme = name;
      button.textContent = name === "dark" ? "Light theme" : "Dark theme";
    }
    function paint(name) {
      set(name);
      painted();
    }
    const stored = () => { try { return localStorage.getItem("covey-theme"); } catch { return null; } };
    dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light"));
    return { button, begin: () => set(["dark", "light"].includes(stored()) ? stored() : dark.matches ? "dark" : "light") };
  }
  return { el, svg, whole, number, short, interval, duration, size, text, colour, table, finite, player, themes };
})();
