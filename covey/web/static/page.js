/* The page of runs. Everything that comes from a run is set as text; nothing is requested, except for the events of a
   live page. `window.covey.apply(event, payload)` changes what is shown. */
(() => {
  const { el, svg, whole, number, short, interval, duration, size, text, colour, table, finite, player, themes } = window.coveyParts;
  const page = JSON.parse(document.getElementById("data").textContent);
  const runs = page.runs;
  const several = runs.length > 1;
  const played = runs.map(() => []); // episodes that a live page has received
  let shown = "all"; // members: all (mean), each, or the index of one
  let charts = [];
  const GROUPS = [
    ["eval", "Evaluation", true], ["skills", "Skills", true], ["train", "Training", true], ["agent", "Agent", false],
    ["hyper", "Hyper-parameters over time", false], ["speed", "Speed", false], ["other", "Other", false],
    ["histograms", "Histograms: share of each bin", false],
  ];
  const SPEED = "speed/steps_per_second";
  /* Quantiles of Student's t at 97.5 %, for 1 to 30 degrees of freedom. */
  const STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131,
    2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042];

  // ---------------------------------------------------------------- curves
  /* Values by step and member; if a step was logged twice, the later row counts. */
  function bySteps(run, metric) {
    const found = new Map();
    for (const [step, member, value] of run.curves[metric] || []) {
      if (!found.has(step)) found.set(step, new Map());
      found.get(step).set(member, value);
    }
    return new Map([...found.entries()].sort((a, b) => a[0] - b[0]));
  }
  function speeds(run) {
    const walls = new Map();
    for (const [step, , , wall] of run.curves[run.curve] || []) if (wall !== null) walls.set(step, wall);
    const steps = [...walls.keys()].sort((a, b) => a - b);
    const found = new Map();
    steps.forEach((step, i) => {
      const seconds = i ? walls.get(step) - walls.get(steps[i - 1]) : 0;
      if (seconds > 0) found.set(step, new Map([[0, (step - steps[i - 1]) / seconds]]));
    });
    return found;
  }
  /* The mean over members with Student's 95 % interval; of a population, whose members copy each other, the range. */
  function centre(values, population) {
    if (!values.length) return [null, null, null];
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    if (values.length < 2) return [mean, null, null];
    if (population) return [mean, Math.min(...values), Math.max(...values)];
    const variance = values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1);
    const half = (STUDENT[values.length - 2] || 1.96) * Math.sqrt(variance / values.length);
    return [mean, mean - half, mean + half];
  }
  function lines(run, metric) {
    const steps = metric === SPEED ? speeds(run) : bySteps(run, metric);
    const x = [...steps.keys()];
    const members = [...new Set([...steps.values()].flatMap((each) => [...each.keys()]))].sort((a, b) => a - b);
    if (members.length > 1 && shown === "all") {
      const found = x.map((step) => centre([...steps.get(step).values()].filter(finite), run.population));
      return [{ label: "", colour: runs.indexOf(run), x, y: found.map((f) => f[0]), low: found.map((f) => f[1]), high: found.map((f) => f[2]) }];
    }
    const chosen = shown === "each" || shown === "all" || members.length < 2 ? members
      : members.filter((m) => m === Number(shown));
    return chosen.map((member) => {
      const of = (name) => { const found = bySteps(run, name); return x.map((s) => found.get(s)?.get(member) ?? null); };
      const banded = chosen.length === 1 && run.curves[`${metric}_low`] && run.curves[`${metric}_high`];
      return {
        label: members.length > 1 ? `member ${member}` : "", colour: members.length > 1 ? member : runs.indexOf(run), x,
        y: x.map((step) => steps.get(step).get(member) ?? null),
        low: banded ? of(`${metric}_low`) : null, high: banded ? of(`${metric}_high`) : null,
      };
    });
  }
  const mark = (i) => el("i", { style: `background: var(--c${i % 8})` });
  /* The meaning of lines and band: a text, or elements. */
  function legend(run, metric) {
    const found = lines(run, metric);
    const band = found.some((line) => line.low && line.low.some(finite));
    if (found.length > 1) return found.map((line) => el("span", {}, mark(line.colour), line.label));
    if (run.members > 1 && shown === "all") {
      return run.population ? `mean and range of ${run.members} members` : `mean of ${run.members} seeds, 95 % interval`;
    }
    const who = run.members > 1 ? `member ${shown}` : "";
    return [who, band ? "mean and 95 % interval over episodes" : ""].filter(Boolean).join(": ");
  }

  class Chart {
    /* `which` are the indices of runs whose curves are drawn over each other. */
    constructor(which, metric, height) {
      this.which = which; this.metric = metric; this.height = height; this.plot = null; this.lines = [];
      this.value = el("span", { "aria-live": "off" });
      this.box = el("div", { class: "plot", tabindex: 0, role: "img", onkeydown: (event) => this.key(event) });
      this.node = el("figure", { "data-metric": metric },
        el("figcaption", {}, el("b", {}, metric === SPEED ? "steps per second" : metric), this.value), this.box);
      this.observer = new ResizeObserver(() => this.resize());
      this.observer.observe(this.box);
      charts.push(this);
    }
    gather() {
      this.lines = this.which.flatMap((i) => lines(runs[i], this.metric).map((line) => (this.which.length > 1
        ? { ...line, label: [runs[i].name, line.label].filter(Boolean).join(", "), colour: i } : line)));
      const tables = this.lines.map((line) => [line.x, line.y, ...(line.low ? [line.low, line.high] : [])]);
      return tables.length ? uPlot.join(tables) : [[]];
    }
    draw() {
      const width = this.box.clientWidth;
      if (!width) return;
      const data = this.gather();
      const series = [{}];
      const bands = [];
      for (const line of this.lines) {
        const ink = colour(`--c${line.colour % 8}`);
        series.push({ stroke: ink, width: 1.6, spanGaps: true, points: { size: 4 } });
        if (line.low) {
          const at = series.length;
          series.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
          series.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
          bands.push({ series: [at + 1, at], fill: `${ink}33` });
        }
      }
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      const options = {
        width, height: this.height, series, bands, legend: { show: false }, scales: { x: { time: false } },
        cursor: { y: false, points: { size: 6 }, sync: { key: "covey" }, drag: { x: true, y: false } },
        axes: [{ ...axis, size: 26, space: 50, values: (_, ticks) => ticks.map(short) },
          { ...axis, size: 48, space: 28, values: (_, ticks) => ticks.map(short) }],
        hooks: { setCursor: [() => this.read()] },
      };
      if (this.plot) this.plot.destroy();
      this.plot = new uPlot(options, data, this.box);
      this.shape = this.lines.map((line) => [line.label, !!line.low, line.colour].join()).join();
      this.read();
    }
    /* New data of the same lines keep the plot, and so the zoom of the user. */
    update() {
      if (!this.plot) return this.draw();
      const data = this.gather();
      if (this.shape !== this.lines.map((line) => [line.label, !!line.low, line.colour].join()).join()) return this.draw();
      const { min, max } = this.plot.scales.x;
      const old = this.plot.data[0];
      const zoomed = old.length && (min > old[0] || max < old[old.length - 1]);
      this.plot.setData(data, !zoomed);
      if (zoomed) this.plot.redraw();
      this.read();
    }
    resize() {
      const width = this.box.clientWidth;
      if (!this.plot) this.draw();
      else if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
    }
    /* Shows the values at the cursor, or the last ones. */
    read() {
      if (!this.plot) return;
      const [x, ...columns] = this.plot.data;
      const cursor = this.plot.cursor.idx;
      const at = finite(cursor) ? cursor : x.length - 1;
      const values = [];
      let column = 0;
      for (const line of this.lines) {
        let i = at;
        while (i > 0 && !finite(columns[column][i])) i--;
        values.push(line.low && this.height > 150 ? interval([columns[column][i], columns[column + 1][i], columns[column + 2][i]]) : number(columns[column][i]));
        column += line.low ? 3 : 1;
      }
      const what = values.length > 4 ? `${values.length} lines` : values.join(" · ");
      const said = x.length ? `${what} at ${whole(x[at])}` : "no data";
      this.value.textContent = said;
      this.box.setAttribute("aria-label", `${this.metric}: ${said}`);
    }
    key(event) {
      const count = this.plot ? this.plot.data[0].length : 0;
      const now = this.plot?.cursor.idx ?? count - 1;
      const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: count - 1 }[event.key];
      if (next === undefined || !count) return;
      event.preventDefault();
      const left = this.plot.valToPos(this.plot.data[0][Math.max(0, Math.min(count - 1, next))], "x");
      this.plot.setCursor({ left, top: 10 });
    }
    remove() {
      this.observer.disconnect();
      if (this.plot) this.plot.destroy();
      charts = charts.filter((each) => each !== this);
      this.node.remove();
    }
  }

  // ---------------------------------------------------------------- parts of a run
  function header(run) {
    const facts = [["agent", run.agent], ["environment", run.env], ["step", `${whole(run.step)} of ${whole(run.steps)}`],
      ["speed", finite(run.steps_per_second) ? `${number(run.steps_per_second)} steps/s` : "unknown"],
      run.state === "finished" ? ["time", duration(run.seconds)] : ["time left", run.state === "running" ? duration(run.seconds_left) : `${duration(run.seconds_left)} if resumed`],
      [run.population ? "members" : "seeds", run.members > 1 ? `${run.members} (from seed ${run.seed})` : `seed ${run.seed}`]];
    return [
      el("h2", {}, run.name, el("span", { class: `badge ${run.state}` }, run.state)),
      el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
      el("progress", { max: Math.max(1, run.steps), value: Math.min(run.step, run.steps), "aria-label": "progress" }),
      el("div", { class: "summary" }, run.summary.map((each) => el("p", {}, each))),
      run.doctor.length ? el("ul", { class: "doctor", "aria-label": "findings" }, run.doctor.map((each) => el("li", {}, text(each)))) : null,
      run.notes.length ? el("ul", { class: "notes", "aria-label": "notes" }, run.notes.map((each) => el("li", {}, each))) : null,
    ];
  }
  function episodesOf(i) {
    const known = new Set(runs[i].episodes.map((each) => each.video));
    return [...runs[i].episodes, ...played[i].filter((each) => !known.has(each.video))];
  }
  function film(i) {
    const episodes = episodesOf(i);
    if (!episodes.length) return [];
    const place = el("div", {});
    const show = (episode) => {
      const about = { "data-episode": finite(episode.step) ? episode.step : "" };
      const said = [finite(episode.step) ? `step ${whole(episode.step)}` : "", finite(episode.return) ? `return ${number(episode.return)}` : "",
        finite(episode.length) ? `${whole(episode.length)} steps long` : ""].filter(Boolean).join(", ");
      place.replaceChildren(player(episode.video, about, `an episode of the policy, ${said}`),
        el("figcaption", {}, el("span", {}, `An episode of the policy: ${said}`)));
    };
    show(episodes[episodes.length - 1]);
    if (episodes.length < 2) return [el("figure", {}, place)];
    const choose = el("select", { "aria-label": "episode", onchange: () => show(episodes[choose.value]) }, episodes.map((each, n) =>
      el("option", { value: n }, `step ${finite(each.step) ? whole(each.step) : "?"}${finite(each.return) ? `: return ${number(each.return)}` : ""}`)));
    choose.value = episodes.length - 1;
    return [el("figure", {}, place), choose];
  }
  const CAPTIONS = { skills: "Trajectories of the skills", episode: "Actions of one episode of the best policy", plan: "The last plan over skills" };
  const pictures = (run) => Object.entries(run.media).map(([name, uri]) => el("figure", {},
    el("figcaption", {}, el("b", {}, CAPTIONS[name] || name)), el("img", { src: uri, alt: CAPTIONS[name] || name, "data-media": name })));
  function hypers(run) {
    const rows = Object.entries(run.hyper).map(([name, values]) => [name, ...values.map(number)]);
    if (!rows.length) return [el("p", {}, "None are logged yet.")];
    const members = Math.max(...rows.map((row) => row.length - 1));
    const found = table(["", ...(members > 1 ? [...Array(members).keys()].map((m) => `member ${m}`) : ["value"])], rows);
    return [found];
  }
  function configuration(run) {
    const rows = Object.entries(run.differs).map(([name, [before, after]]) => [name, text(after), text(before)]);
    return [rows.length ? table(["option", "value", "default"], rows) : el("p", {}, "All options have their default values."),
      el("details", {}, el("summary", {}, "The whole configuration"), el("pre", { tabindex: 0 }, JSON.stringify(run.config, null, 2)))];
  }
  function origin(run) {
    const found = [el("h3", {}, "Command"), el("pre", { tabindex: 0 }, run.command || "unknown")];
    if (finite(run.started)) found.push(el("p", {}, `Started ${new Date(run.started * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC, by the file times of the folder ${run.path}.`));
    found.push(el("h3", {}, "Versions"), table([], Object.entries(run.versions)));
    found.push(el("h3", {}, "Changes at resume"), run.changes.length
      ? table(["at step", "option", "before", "after"], run.changes.map((c) => [whole(c.step), c.name, text(c.old), text(c.new)])) : el("p", {}, "None."));
    found.push(el("h3", {}, "Checkpoints"), run.checkpoints.length
      ? table(["kind", "step", "training time", "size"], run.checkpoints.map((c) => [c.kind === "best" ? "best policy" : "training", whole(c.step), finite(c.seconds) ? duration(c.seconds) : "–", size(c.bytes)]))
      : el("p", {}, "None."));
    return found;
  }

  // ---------------------------------------------------------------- lineage
  /* Members from top to bottom, steps from left to right; a curve shows a member becoming a copy of another. */
  function lineage(run) {
    const rows = run.lineage;
    if (!rows.length) return [];
    const members = Math.max(...rows.map((row) => row.member)) + 1;
    const last = Math.max(run.step, ...rows.map((row) => row.step));
    const first = Math.min(...rows.map((row) => row.step));
    const lane = members > 24 ? 12 : 26;
    const moments = new Set(rows.map((row) => row.step)).size;
    const width = Math.max(300, Math.min(1100, 90 + moments * 70));
    const x = (step) => 76 + ((width - 92) * (step - first)) / Math.max(1, last - first);
    const y = (member) => 14 + lane * (member + 0.5);
    const known = rows.map((row) => row.fitness).filter(finite);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const shade = (fitness) => (finite(fitness) ? `color-mix(in srgb, var(--c1) ${Math.round((100 * (fitness - low)) / Math.max(1e-12, high - low))}%, var(--c6))` : "var(--warn)");
    const chosen = /^\d+$/.test(shown) ? Number(shown) : -1;
    const lanes = [...Array(members).keys()].map((member) => {
      const press = () => choose(String(member === chosen ? "all" : member));
      return svg("g", { class: `lane${member === chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "data-member": member,
        "aria-pressed": String(member === chosen), "aria-label": `member ${member}`, onclick: press,
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); press(); } } },
      svg("rect", { x: 0, y: y(member) - lane / 2, width, height: lane, fill: "transparent" }),
      svg("text", { x: 4, y: y(member) + 4 }, `member ${member}`),
      svg("line", { class: "life", x1: x(first), x2: x(last), y1: y(member), y2: y(member) }));
    });
    const copies = rows.filter((row) => finite(row.parent) && row.parent !== row.member).map((row) => {
      const [a, b, at] = [y(row.parent), y(row.member), x(row.step)];
      return svg("path", { class: "copy", d: `M${at - 12},${a} C${at - 3},${a} ${at - 9},${b} ${at},${b}`, "stroke-width": 1.6 });
    });
    const dots = rows.map((row) => svg("circle", { cx: x(row.step), cy: y(row.member), r: lane > 20 ? 4.5 : 3, fill: shade(row.fitness) },
      svg("title", {}, `member ${row.member}, step ${whole(row.step)}: fitness ${number(row.fitness)}${finite(row.parent) && row.parent !== row.member ? `, replaced by a copy of member ${row.parent}` : ""}`)));
    for (const dot of dots) dot.setAttribute("pointer-events", "none");
    const height = 14 + lane * members + 20;
    const drawing = svg("svg", { class: "lineage", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "lineage of the population" },
      lanes, copies, ancestry(rows, chosen, x, y, last), dots,
      svg("text", { x: x(first), y: height - 4 }, `step ${whole(first)}`), svg("text", { x: x(last), y: height - 4, "text-anchor": "end" }, whole(last)));
    return [el("h3", {}, "Lineage"), el("p", { class: "legend" }, "Choose a member to see its ancestors and its curves. A curve leads from a donor to the member that became its copy; dots are evaluations, from low (blue) to high (orange) fitness."),
      el("div", { class: "scroll" }, drawing)];
  }
  /* The way of the weights that a member has at the end. */
  function ancestry(rows, member, x, y, last) {
    if (member < 0) return [];
    const parents = new Map(rows.filter((row) => finite(row.parent) && row.parent !== row.member).map((row) => [`${row.step} ${row.member}`, row.parent]));
    const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => b - a);
    let at = member;
    let path = `M${x(last)},${y(at)}`;
    for (const step of steps) {
      path += ` L${x(step)},${y(at)}`;
      const parent = parents.get(`${step} ${at}`);
      if (parent === undefined) continue;
      const [a, b, here] = [y(parent), y(at), x(step)];
      path += ` C${here - 9},${b} ${here - 3},${a} ${here - 12},${a}`;
      at = parent;
    }
    return [svg("path", { class: "ancestor", d: path })];
  }

  // ---------------------------------------------------------------- the page
  const sections = [];
  /* The parts of a run that are made anew when something that they show has changed. */
  const PARTS = {
    header: [header, (run) => ({ ...run, curves: 0, config: 0, lineage: 0, media: 0, episodes: 0, final: 0 })],
    lineage: [lineage, (run) => [run.lineage, run.lineage.length ? run.step : 0, shown]],
    pictures: [pictures, (run) => run.media],
    hypers: [hypers, (run) => run.hyper],
    configuration: [configuration, (run) => [run.config, run.differs]],
    origin: [origin, (run) => [run.command, run.started, run.versions, run.changes, run.checkpoints]],
  };
  function groupOf(metric) {
    if (/\[\d+\]$/.test(metric)) return "histograms";
    const name = metric.split("/")[0];
    return GROUPS.some(([known]) => known === name) ? name : "other";
  }
  function build(i) {
    const run = runs[i];
    const part = (name) => el("div", { "data-part": name });
    const parts = Object.fromEntries(["header", "film", "lineage", "pictures", "hypers", "configuration", "origin"].map((name) => [name, part(name)]));
    const main = new Chart([i], run.curve, several ? 220 : 300);
    const caption = el("div", { class: "legend" });
    const groups = Object.fromEntries(GROUPS.map(([key, title, open]) => {
      const box = el("div", { class: "charts" });
      const count = el("small");
      const details = el("details", { "data-group": key, open: open && !several, hidden: true, ontoggle: () => fillGroup(i, key) }, el("summary", {}, title, " ", count), box);
      return [key, { box, details, count, charts: new Map() }];
    }));
    const folded = (title, node, open) => el("details", { open }, el("summary", {}, title), node);
    const first = el("div", { class: "first" }, el("div", {}, main.node, caption), parts.film);
    const node = el("section", { class: "run", "data-run": i }, parts.header, first, parts.lineage, parts.pictures,
      Object.values(groups).map((group) => group.details), folded("Hyper-parameters in effect", parts.hypers, !several),
      folded("Configuration: what differs from the default", parts.configuration, false), folded("Command, versions, changes and checkpoints", parts.origin, false));
    sections[i] = { node, parts, groups, main, caption, first };
    return node;
  }
  /* Charts of a group are made when it is opened. */
  function fillGroup(i, key) {
    const group = sections[i].groups[key];
    const names = metrics(i, key);
    group.details.hidden = !names.length;
    group.count.textContent = String(names.length);
    if (!group.details.open) return;
    for (const name of names) {
      if (!group.charts.has(name)) group.charts.set(name, new Chart([i], name, 130));
      group.box.append(group.charts.get(name).node);
    }
    for (const [name, chart] of group.charts) if (!names.includes(name)) { chart.remove(); group.charts.delete(name); }
  }
  function metrics(i, key) {
    const run = runs[i];
    if (key === "speed") return speeds(run).size ? [SPEED] : [];
    return Object.keys(run.curves).filter((name) => groupOf(name) === key && name !== run.curve
      && !(/_(low|high)$/.test(name) && run.curves[name.replace(/_(low|high)$/, "")])).sort();
  }
  function show(i) {
    const run = runs[i];
    const { parts, caption } = sections[i];
    for (const [name, [make, uses]] of Object.entries(PARTS)) {
      const key = JSON.stringify(uses(run));
      if (parts[name].made === key) continue; // else a live page would lose the focus and the scroll position
      parts[name].made = key;
      const open = [...parts[name].querySelectorAll("details")].map((each) => each.open);
      parts[name].replaceChildren(...make(run).filter(Boolean));
      [...parts[name].querySelectorAll("details")].forEach((each, n) => { each.open = open[n] || false; });
    }
    caption.replaceChildren(...[legend(run, run.curve)].flat());
    for (const [key] of GROUPS) fillGroup(i, key);
    const marks = [...parts.hypers.querySelectorAll("tr")];
    for (const row of marks) [...row.children].forEach((cell, n) => { cell.style.color = n && String(n - 1) === shown ? "var(--accent)" : ""; });
  }
  function showFilm(i) {
    const { parts, first } = sections[i];
    const key = episodesOf(i).map((each) => each.video).join(" ");
    if (parts.film.made === key) return; // else a film would start again
    parts.film.made = key;
    parts.film.replaceChildren(...film(i));
    first.classList.toggle("film", parts.film.childNodes.length > 0);
  }
  const members = el("select", { id: "members", onchange: () => choose(members.value) });
  function options() {
    const count = Math.max(...runs.map((run) => run.members));
    const texts = [["all", "all: mean and interval"], ["each", "all: each member"], ...[...Array(count).keys()].map((m) => [String(m), `member ${m}`])];
    if (members.childNodes.length !== texts.length) members.replaceChildren(...texts.map(([value, said]) => el("option", { value }, said)));
    members.value = shown;
    chooser.hidden = count < 2;
  }
  function choose(value) {
    shown = value;
    options();
    const focused = document.activeElement?.getAttribute?.("data-member");
    const where = document.activeElement?.closest?.("[data-run]")?.getAttribute("data-run");
    runs.forEach((_, i) => show(i));
    if (focused !== null && focused !== undefined) document.querySelector(`[data-run="${where}"] [data-member="${focused}"]`)?.focus();
    for (const chart of charts) chart.draw();
    compare();
  }
  const chooser = el("label", {}, "Members ", members);
  const theme = themes(() => { for (const chart of charts) chart.draw(); });

  // ---------------------------------------------------------------- comparison
  const comparison = el("section", { id: "comparison", hidden: !several });
  const tables = el("div", {});
  let overlaid = null;
  function compare() {
    const found = page.comparison;
    if (!several || !found) return;
    if (!overlaid) {
      overlaid = new Chart(runs.map((_, i) => i), found.metric, 300);
      comparison.replaceChildren(el("h2", {}, "Comparison"), el("div", { class: "legend", "aria-label": "legend" }, runs.map((run, i) =>
        el("span", {}, mark(i), run.name))), overlaid.node, tables);
    }
    const rows = found.rows.map((row, i) => [runs[i].name, String(row.members), whole(row.step), number(row.mean[0]),
      finite(row.mean[1]) ? `${number(row.mean[1])} to ${number(row.mean[2])}` : "–", number(row.iqm[0]),
      finite(row.iqm[1]) ? `${number(row.iqm[1])} to ${number(row.iqm[2])}` : "–"]);
    const chances = found.improvement.map((row, i) => [runs[i].name, ...row.map((p) => (!p ? "–" : finite(p[1]) ? `${p[0].toFixed(2)} [${p[1].toFixed(2)}, ${p[2].toFixed(2)}]` : p[0].toFixed(2)))]);
    tables.replaceChildren(
      el("h3", {}, `${found.metric} at the last evaluation that all runs have reached`),
      table(["run", "members", "step", "mean", "95 % interval", "IQM", "95 % bootstrap interval"], rows),
      el("h3", {}, "Probability of improvement"),
      el("p", { class: "legend" }, "The probability that a member of the run in the row has a higher value than one of the run in the column, with its 95 % bootstrap interval."),
      table(["", ...runs.map((run) => `over ${run.name}`)], chances),
      ...(found.notes.length ? [el("ul", { class: "notes" }, found.notes.map((each) => el("li", {}, each)))] : []));
    if (page.live) overlaid.update();
  }

  // ---------------------------------------------------------------- events of a live page
  const dirty = new Set();
  let timer = null;
  function schedule(i) {
    dirty.add(i);
    timer ??= setTimeout(() => {
      timer = null;
      for (const each of dirty) show(each);
      for (const chart of charts) if (chart.which.some((each) => dirty.has(each))) chart.update();
      dirty.clear();
      options();
    }, 200);
  }
  function apply(event, payload) {
    if (event === "rows") {
      for (const [i, metric, step, member, value, wall] of payload) {
        (runs[i].curves[metric] ??= []).push([step, member, value, wall]);
        runs[i].step = Math.max(runs[i].step, step);
        schedule(i);
      }
      return;
    }
    if (event === "comparison") { page.comparison = payload; compare(); return; }
    const [i, data] = payload;
    if (event === "run") {
      runs[i] = { ...data, curves: runs[i].curves };
      played[i] = []; // they are among its episodes
      showFilm(i);
    } else if (event === "reset") {
      runs[i] = data;
      played[i] = [];
      showFilm(i);
    } else if (event === "episode") {
      played[i].push(data);
      showFilm(i);
      return;
    }
    schedule(i);
  }
  const status = el("span", { class: "status", role: "status" });
  function listen() {
    const source = new EventSource(page.live);
    for (const name of ["rows", "run", "reset", "episode", "comparison"]) source.addEventListener(name, (event) => apply(name, JSON.parse(event.data)));
    source.onopen = () => { status.textContent = "live"; };
    source.onerror = () => { status.textContent = "connection lost"; };
  }

  document.body.append(el("header", { class: "top" }, el("h1", {}, runs.map((run) => run.name).join(", ")), status, chooser, theme.button),
    el("main", {}, comparison, el("div", { class: "runs" }, runs.map((_, i) => build(i)))));
  theme.begin();
  options();
  runs.forEach((_, i) => { show(i); showFilm(i); });
  compare();
  for (const chart of charts) chart.draw();
  window.covey = { runs, apply };
  if (page.live) listen();
})();
