/* The page of skills: pick a skill on the map or in the list, and see its path, its numbers and its film. Everything
   that comes from a run is set as text; nothing is requested. `window.covey.choose(i)` shows another skill. */
(() => {
  const { el, svg, whole, number, short, finite, table, player, themes } = window.coveyParts;
  const page = JSON.parse(document.getElementById("data").textContent);
  const skills = page.skills;
  const MOST_TAGS = 16; // up to this many skills have their number on the map
  const WIDTH = 640;
  const EDGE = { left: 52, right: 12, top: 12, bottom: 44 };
  let chosen = -1;

  // ---------------------------------------------------------------- the map
  const [left, bottom, right, top] = page.limits;
  const across = Math.max(right - left, 1e-9) * 1.06;
  const up = Math.max(top - bottom, 1e-9) * 1.06;
  const inner = WIDTH - EDGE.left - EDGE.right;
  /* A position has the same scale on both axes, unless the map would be very high or very flat. */
  const height = page.equal ? Math.min(680, Math.max(200, (inner * up) / across)) : 460;
  const x = (value) => EDGE.left + inner * ((value - (left + right) / 2) / across + 0.5);
  const y = (value) => EDGE.top + height * (0.5 - (value - (bottom + top) / 2) / up);
  function ticks(low, high) {
    const rough = Math.max(high - low, 1e-9) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  }
  const points = (skill) => skill.path.filter((point) => point.every(finite));
  function rules() {
    const low = EDGE.top + height;
    return [svg("rect", { class: "frame", x: EDGE.left, y: EDGE.top, width: inner, height }),
      ticks(left, right).map((at) => [svg("line", { class: "rule", x1: x(at), x2: x(at), y1: EDGE.top, y2: low }),
        svg("text", { x: x(at), y: low + 16, "text-anchor": "middle" }, short(at))]),
      ticks(bottom, top).map((at) => [svg("line", { class: "rule", x1: EDGE.left, x2: EDGE.left + inner, y1: y(at), y2: y(at) }),
        svg("text", { x: EDGE.left - 6, y: y(at) + 4, "text-anchor": "end" }, short(at))]),
      svg("text", { x: EDGE.left + inner / 2, y: low + 36, "text-anchor": "middle" }, page.axes[0]),
      svg("text", { x: 12, y: EDGE.top + height / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${EDGE.top + height / 2})` }, page.axes[1])].flat(3);
  }
  /* The number of a skill, halfway to the farthest point of its path: the ends of paths may coincide. */
  function tag(skill, line) {
    const distance = line.map(([a, b]) => Math.hypot(x(a) - x(line[0][0]), y(b) - y(line[0][1])));
    const [a, b] = line[distance.findIndex((each) => each >= 0.5 * Math.max(...distance))];
    return svg("g", { class: "tag" }, svg("circle", { cx: x(a), cy: y(b), r: 11, stroke: skill.colour }),
      svg("text", { x: x(a), y: y(b) + 4, "text-anchor": "middle" }, String(skill.number)));
  }
  const drawings = skills.map((skill, i) => {
    const line = points(skill);
    if (!line.length) return svg("g", {});
    const d = `M${line.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" L")}`;
    const [a, b] = line[line.length - 1];
    return svg("g", { class: "skill", "data-skill": skill.number, onclick: () => choose(i) }, svg("title", {}, skill.label),
      svg("path", { class: "hit", d }), svg("path", { class: "edge", d }), svg("path", { class: "line", d, stroke: skill.colour }),
      svg("circle", { class: "dot", cx: x(a), cy: y(b), r: 6, fill: skill.colour }),
      skills.length <= MOST_TAGS ? tag(skill, line) : null);
  });
  const lines = svg("g", {}, drawings);
  const map = svg("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${EDGE.top + height + EDGE.bottom}`, role: "img",
    "aria-label": `Paths of ${skills.length} skills in ${page.axes.join(" and ")}; the list below picks one` }, rules(), lines);

  // ---------------------------------------------------------------- the list and the skill
  const swatch = (skill) => el("i", { class: "swatch", style: `background: ${skill.colour}` });
  const inputs = skills.map((skill, i) => el("input", { type: "radio", name: "skill", value: skill.number, "aria-label": skill.label, onchange: () => choose(i) }));
  const list = el("fieldset", { class: "list" }, el("legend", {}, "Pick a skill here (arrow keys move), or click on its path:"),
    skills.map((skill, i) => el("label", { title: skill.label }, inputs[i], swatch(skill), String(skill.number))));
  const detail = el("section", { class: "detail", "aria-live": "polite", "aria-label": "the skill" });
  const place = (skill) => page.names.map((name, i) => `${name} ${number(skill.end[i])}`).join(", ");
  const vector = (skill) => (page.discrete ? `one-hot: ${skill.skill.join(" ")}` : skill.skill.map(number).join(", "));
  const faster = Math.abs(page.speed - 1) > 0.05 ? `, ${number(+page.speed.toPrecision(2))} times as fast as it was` : "";
  function show(skill) {
    const facts = [["ends at", place(skill)], ["length", `${whole(skill.length)} steps`], ["return", number(skill.return)], ["skill vector", vector(skill)]];
    detail.replaceChildren(el("h2", {}, swatch(skill), skill.label),
      el("figure", { class: "film" }, player(skill.film, { "data-film": skill.number }, `a film of ${skill.label}`),
        el("figcaption", {}, el("span", {}, `${page.drawn ? "One greedy episode" : "The path of one greedy episode: this environment can't be drawn"}${faster}`))),
      el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  }
  function choose(i) {
    if (i === chosen) return;
    chosen = i;
    inputs[i].checked = true;
    drawings.forEach((each, n) => each.classList.toggle("chosen", n === i));
    lines.append(drawings[i]); // on top of the others
    show(skills[i]);
    try { history.replaceState(null, "", `#${skills[i].number}`); } catch { /* a page from disk may not change its address */ }
  }
  const fromAddress = () => skills.findIndex((skill) => `#${skill.number}` === location.hash);
  window.addEventListener("hashchange", () => { if (fromAddress() >= 0) choose(fromAddress()); });

  // ---------------------------------------------------------------- the page
  const theme = themes(() => {});
  const rows = skills.map((skill) => [skill.label, ...skill.end.map(number), whole(skill.length), number(skill.return)]);
  const some = skills.length < page.count ? ` ${skills.length} of ${page.count} skills are on this page.` : "";
  document.body.append(el("header", { class: "top" }, el("h1", {}, `Skills of ${page.name}`), theme.button),
    el("main", {}, el("p", { class: "legend" }, `${page.agent} on ${page.env}. All skills start from the same state.${some}`),
      el("div", { class: "pick" }, el("div", {}, map, list), detail),
      el("details", {}, el("summary", {}, "All skills in numbers"), table(["skill", ...page.names.map((name) => `${name} at the end`), "steps", "return"], rows))));
  theme.begin();
  choose(Math.max(0, fromAddress()));
  window.covey = { page, choose };
})();
