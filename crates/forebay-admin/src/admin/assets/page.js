"use strict";
// Shows /status.json, and reads it again every 2 s. All values become text nodes, so that no name
// can become a part of the page.
const PERIOD = 2000;
const KEPT = 150;
const TEXTS = ["Address", "Source", "Route"];
const live = document.getElementById("live");
let before = null;
let lastAnswer = Date.now();
const rates = [];

function element(tag, kind, ...children) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...children.map(child => (child instanceof Node ? child : String(child))));
  return made;
}

function tile(value, name, kind) {
  const number = element("b", kind, value);
  return element("div", "tile", number, element("span", "", name));
}

function section(title, heads, rows) {
  if (!rows.length) return [];
  const head = element("tr", "", ...heads.map(name => element("th", TEXTS.includes(name) ? "text" : "", name)));
  const lines = rows.map(cells => element("tr", "", ...cells.map(cell =>
    cell instanceof Node && cell.tagName === "TD" ? cell : element("td", "", cell))));
  const table = element("table", "", head, ...lines);
  return [element("h2", "", title), element("div", "scroll", table)];
}

function cell(kind, text) {
  return element("td", kind, text);
}

function duration(seconds) {
  if (seconds < 120) return Math.floor(seconds) + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
  return Math.floor(seconds / 86400) + " days";
}

function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return bytes.toFixed(unit ? 1 : 0) + " " + units[unit];
}

function number(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

// Returns the upper limit of the bucket that contains this share of the new requests.
function quantile(now, then, share) {
  const counts = now.buckets.map((bucket, at) => bucket.count - then.buckets[at].count);
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all <= 0) return "-";
  let seen = 0;
  for (let at = 0; at < counts.length; at += 1) {
    seen += counts[at];
    if (seen < share * all) continue;
    const limit = now.buckets[at].le_us;
    if (limit === null) return "> " + number(now.buckets[at - 1].le_us / 1000) + " ms";
    return "\u2264 " + number(limit / 1000) + " ms";
  }
  return "-";
}

function chart() {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const most = Math.max(1, ...rates);
  svg.setAttribute("viewBox", "0 0 " + (KEPT - 1) + " 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "chart");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "Requests per second, at most " + number(most));
  const line = document.createElementNS(space, "polyline");
  const first = KEPT - rates.length;
  line.setAttribute("points", rates.map((rate, at) =>
    (first + at) + "," + (98 - 96 * rate / most).toFixed(1)).join(" "));
  svg.append(line);
  return svg;
}

function tiles(now, then, seconds) {
  const rate = (a, b) => Math.max(0, a - b) / seconds;
  const made = [tile(now.connections.toLocaleString("en"), "connections")];
  if (then) {
    const requests = rate(now.requests, then.requests);
    const errors = rate(now.replies["5xx"], then.replies["5xx"]);
    rates.push(requests);
    if (rates.length > KEPT) rates.shift();
    made.unshift(
      tile(number(requests), "requests/s"),
      tile(quantile(now.durations, then.durations, 0.5), "median time"),
      tile(quantile(now.durations, then.durations, 0.99), "time of 99 %"),
      tile(number(errors), "errors (5xx)/s", errors > 0 ? "bad" : ""),
      tile(number(rate(now.replies["4xx"], then.replies["4xx"])), "refused (4xx)/s"),
      tile(size(rate(now.body_bytes, then.body_bytes)), "sent/s"));
  }
  made.push(tile(now.requests.toLocaleString("en"), "requests since the start"));
  made.push(tile(size(now.buffered_bytes), "buffered for slow clients"));
  return element("div", "tiles", ...made);
}

function backendRows(now, then, seconds) {
  return now.backends.map((backend, at) => {
    const of = backend.upstream ? "upstream " + backend.upstream
      : backend.stream ? "stream " + backend.stream
      : "site " + backend.site + ", route " + backend.route;
    const old = then && then.backends[at];
    const same = old && old.address === backend.address;
    const rate = same ? number(Math.max(0, backend.requests - old.requests) / seconds) : "-";
    let kind = backend.state === "up" ? "good" : "bad";
    let state = backend.state;
    if (backend.activation !== "active") {
      kind = "warn";
      state = backend.activation + ", " + state;
    }
    if (backend.backup) state += ", backup";
    if (backend.slow_start !== undefined) state += ", slow start: " + backend.slow_start + " %";
    return [of, cell("text", backend.address), cell(kind, state), backend.weight, backend.active,
      rate, backend.requests, cell(backend.failures ? "warn" : "", backend.failures)];
  });
}

function appRows(now) {
  return now.apps.map(app => {
    const link = element("a", "", app.name);
    link.href = "/apps/" + encodeURIComponent(app.name).replace(/[!'()*.]/g, c =>
      "%" + c.charCodeAt(0).toString(16).toUpperCase());
    const busy = app.workers.filter(worker => worker.state === "busy").length;
    const memory = app.workers.reduce((sum, worker) => sum + worker.rss, 0);
    const state = app.crash_loop ? cell("bad", "ends at its start") : cell("good", "runs");
    return [cell("text", link), state, app.workers.length, busy, app.waiting, size(memory),
      app.starts, cell(app.crashes ? "warn" : "", app.crashes)];
  });
}

function certificateRows(now) {
  return now.certificates.map(one => {
    const error = one.renewal && one.renewal.error ? ": " + one.renewal.error : "";
    if (one.expires === null) {
      return [one.names.join(", "), cell("text", one.source), cell("bad", "not issued yet" + error)];
    }
    const left = one.expires - Date.now() / 1000;
    // A certificate of six days has two days left when its renewal is due.
    const late = Math.min(14 * 86400, (one.expires - one.starts) / 4);
    const kind = left < 0 ? "bad" : left < late ? "warn" : "good";
    const text = left < 0 ? "expired" : "expires in " + duration(left);
    return [one.names.join(", "), cell("text", one.source), cell(error ? "warn" : kind, text + error)];
  });
}

function show(now, time) {
  const restarted = before && (before.now.pid !== now.pid || before.now.requests > now.requests);
  const then = before && !restarted ? before.now : null;
  const seconds = then ? Math.max(0.1, (time - before.time) / 1000) : 1;
  const configuration = now.configuration;
  const source = configuration.source === "posted" ? "a posted text"
    : configuration.file || "the command line";
  const parts = [
    element("p", "soft", "Version " + now.version + ", process " + now.pid + ", up "
      + duration(now.uptime_s) + ". Configuration " + configuration.generation + " of " + source + "."),
    ...now.left_out.map(one => element("p", "bad",
      one.name + " is left out: " + one.problem + "; " + one.help)),
    ...configuration.changes.map(change => element("p", "warn", "Changed: " + change)),
    tiles(now, then, seconds),
  ];
  if (rates.length > 1) {
    const text = "Requests/s in the last 5 minutes, at most " + number(Math.max(...rates));
    parts.push(chart(), element("p", "soft", text));
  }
  parts.push(
    ...section("Limits reached", ["Limit", "Times"],
      Object.entries(now.limits_reached).filter(([, n]) => n > 0)
        .map(([name, n]) => [name, cell("warn", n)])),
    ...section("Backends",
      ["Of", "Address", "State", "Weight", "Active", "Requests/s", "Requests", "Failures"],
      backendRows(now, then, seconds)),
    ...section("Applications",
      ["Name", "State", "Processes", "Busy", "Waiting", "Memory", "Starts", "Crashes"], appRows(now)),
    ...section("Certificates", ["Names", "Source", "State"], certificateRows(now)),
    ...Object.entries(now.top).flatMap(([kind, rows]) => section("Top " + kind,
      ["Name", "Requests", "Time", "Queue"],
      rows.slice(0, 10).map(row => [cell("text", row.name), row.requests,
        row.time_s.toFixed(3) + " s", row.queue_s.toFixed(3) + " s"]))),
    ...section("Steps", ["Step", "Requests", "Mean"], Object.entries(now.steps)
      .map(([name, step]) => [name, step.count, (step.mean_us / 1000).toFixed(3) + " ms"])),
    ...section("Routes", ["Site", "Route", "Requests", "Mean"], now.routes.map(route => [
      route.site, cell("text", route.route),
      route.replies.reduce((sum, reply) => sum + reply.requests, 0),
      route.timed ? (route.duration_sum_us / route.timed / 1000).toFixed(3) + " ms" : "-"])),
    ...section("Replies", ["Class", "Replies"], Object.entries(now.replies)));
  live.replaceChildren(...parts);
  before = { now, time };
}

async function tick() {
  try {
    const reply = await fetch("/status.json", { cache: "no-store" });
    if (!reply.ok) throw new Error("status " + reply.status);
    show(await reply.json(), performance.now());
    lastAnswer = Date.now();
    document.title = "Forebay";
  } catch (error) {
    const text = "No answer for " + duration((Date.now() - lastAnswer) / 1000) + ": " + error.message;
    if (!live.firstChild || live.firstChild.className !== "bad") live.prepend(element("p", "bad"));
    live.firstChild.textContent = text;
    document.title = "No answer - Forebay";
  }
  setTimeout(tick, PERIOD);
}

tick();
