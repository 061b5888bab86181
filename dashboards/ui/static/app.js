// What pages do beyond links and forms. Everything works without it, but charts, local times and live rows.
"use strict";
(() => {
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(name).trim();
  };

  // Times in the viewer's zone, which is named; the title keeps UTC.
  const two = (value) => String(value).padStart(2, "0");
  const named = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
  const zone = (at) => named.formatToParts(at).find((part) => part.type === "timeZoneName").value;
  const day = (at) => at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate());
  const moment = { format: (at) => day(at) + " " + two(at.getHours()) + ":" + two(at.getMinutes()) + " " + zone(at) };
  const second = { format: (at) => day(at) + " " + [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":") + " " + zone(at) };
  const clock = { format: (at) => [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":") + " " + zone(at) };
  const localTimes = (root) => {
    for (const each of root.querySelectorAll("time[data-local]")) {
      const at = new Date(each.dateTime);
      if (!isNaN(at)) {
        each.textContent = ({ clock, second }[each.dataset.local] || moment).format(at);
        each.removeAttribute("data-local");
      }
    }
  };

  // Charts.
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const dollars = (value) => (value < 0 ? "-$" : "$") + (Math.abs(value) >= 1000 ? compact.format(Math.abs(value)) : Math.abs(value) >= 1 || value === 0 ? Math.abs(value).toFixed(2) : Math.abs(value).toPrecision(2));
  const shown = {
    usd: dollars,
    share: (value) => (value * 100).toFixed(value < 0.1 ? 1 : 0) + " %",
    seconds: (value) => (value < 1 ? Math.round(value * 1000) + " ms" : value.toFixed(1) + " s"),
    tokens: (value) => compact.format(value),
    requests: (value) => compact.format(value),
    "": (value) => compact.format(value),
  };
  const tones = { accent: "--chart-1", good: "--good", warn: "--warn", bad: "--bad", quiet: "--chart-quiet" };

  // Ticks of a time axis: hours in the viewer's zone, days by the date of UTC, as everywhere else.
  const hours = (at) => {
    const local = new Date(at * 1000);
    const clock = two(local.getHours()) + ":" + two(local.getMinutes());
    return clock === "00:00" ? day(local).slice(5) : clock;
  };
  const days = (at) => (at % 86400 ? "" : new Date(at * 1000).toISOString().slice(5, 10));

  // Each series on top of those before it; drawn from the last to the first, so that none hides another.
  const stacked = (columns) => {
    const sums = new Array(columns[0].length).fill(0);
    return columns.map((column) => column.map((value, place) => (sums[place] += value || 0)));
  };

  const draw = (box) => {
    const chart = JSON.parse(box.dataset.chart);
    const colour = colours();
    const unit = shown[chart.unit] || shown[""];
    const isStacked = chart.shape === "stacked";
    const plain = chart.series.map((each) => each.values);
    const drawn = isStacked ? stacked(plain) : plain;
    const order = chart.series.map((_, place) => place);
    if (isStacked) order.reverse();
    const rows = box.parentElement.querySelector("details.twin tbody")?.rows;
    const written = (index, place) => rows?.[index]?.cells[place + 1]?.textContent;
    const bars = chart.shape === "bars" || chart.shape === "histogram" || isStacked;
    const series = order.map((place) => {
      const each = chart.series[place];
      const stroke = colour(tones[each.tone] || "--chart-" + (each.colour || (place % 12) + 1));
      return {
        label: each.label,
        stroke,
        width: bars ? 0 : 2,
        fill: bars ? stroke : chart.shape === "area" ? stroke + "22" : undefined,
        paths: bars ? uPlot.paths.bars({ size: [0.8, 60] }) : undefined,
        points: { show: !bars && chart.x.length < 2 },
        // The legend says what the table below says: one formatter, which is the server's.
        value: (_, __, ___, index) => (index === null ? "—" : written(index, place) ?? unit(plain[place][index])),
      };
    });
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const marks = {
      hooks: {
        draw: (u) => {
          for (const mark of chart.marks) {
            const x = u.valToPos(mark.x, "x", true);
            if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
            u.ctx.save();
            u.ctx.strokeStyle = u.ctx.fillStyle = colour("--ink");
            u.ctx.setLineDash([4, 4]);
            u.ctx.beginPath();
            u.ctx.moveTo(x, u.bbox.top);
            u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
            u.ctx.stroke();
            u.ctx.font = 12 * devicePixelRatio + "px system-ui";
            const right = x > u.bbox.left + u.bbox.width * 0.7;
            u.ctx.textAlign = right ? "right" : "left";
            u.ctx.fillText(mark.label, x + (right ? -6 : 6) * devicePixelRatio, u.bbox.top + 14 * devicePixelRatio);
            u.ctx.restore();
          }
        },
      },
    };
    const step = chart.x.length > 1 ? (chart.x[chart.x.length - 1] - chart.x[0]) / (chart.x.length - 1) : chart.isTime ? 86400 : 1;
    box.replaceChildren();
    const height = box.classList.contains("tall") ? 280 : box.closest(".lines") ? 140 : 190;
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height,
        series: [{ label: chart.isTime ? "Time" : "", value: chart.isTime ? (_, at) => (at === null ? "—" : chart.byHour ? moment.format(new Date(at * 1000)) : new Date(at * 1000).toISOString().slice(0, 10) + " UTC") : undefined }, ...series],
        axes: [{ ...axis, grid: { show: false }, ...(chart.isTime ? { values: (_, ticks) => ticks.map(chart.byHour ? hours : days) } : {}) }, { ...axis, size: 64, values: (_, ticks) => ticks.map((value) => (value === null ? "" : unit(value))) }],
        scales: {
          x: { time: chart.isTime, range: bars ? (_, low, high) => [low - step * 0.6, high + step * 0.6] : undefined },
          y: { range: (_, low, high) => [Math.min(0, low), high <= 0 ? 1 : high * 1.08] },
        },
        // Days are UTC days, and stand under their own date.
        tzDate: chart.byHour ? undefined : (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
        legend: { live: true },
        cursor: { drag: { x: false, y: false } },
        plugins: [marks],
      },
      [chart.x, ...order.map((place) => drawn[place])],
      box,
    );
    box.plot = plot;
    // While nobody points at the chart, its legend tells the last values.
    const rest = () => plot.setLegend({ idx: chart.x.length - 1 });
    requestAnimationFrame(rest);
    plot.over.addEventListener("mouseleave", rest);
    const lead = (place) => {
      if (chart.hrefs.length && place !== null && place !== undefined) location.href = chart.hrefs[place];
    };
    if (chart.hrefs.length) {
      plot.over.classList.add("leads");
      plot.over.addEventListener("click", () => lead(plot.cursor.idx));
    }
    // Arrow keys move along the chart as a pointer does, and its legend tells the values there.
    const point = (place) => {
      plot.setCursor({ left: plot.valToPos(chart.x[place], "x"), top: 0 });
      plot.setLegend({ idx: place });
    };
    box.onblur = () => (plot.setCursor({ left: -10, top: -10 }), rest());
    box.onkeydown = (event) => {
      const last = chart.x.length - 1;
      const at = plot.cursor.idx ?? last;
      if (event.key === "Enter") return lead(at);
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      point(Math.max(0, Math.min(last, to)));
    };
    const legend = box.querySelector(".u-legend");
    legend.setAttribute("aria-live", "polite");
    new ResizeObserver(() => {
      if (Math.abs(plot.width - box.clientWidth) > 1) plot.setSize({ width: box.clientWidth, height });
    }).observe(box);
  };
  const charts = (root) => {
    for (const box of root.querySelectorAll("[data-chart]")) if (!box.plot) draw(box);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const box of document.querySelectorAll("[data-chart]")) draw(box);
  });

  // Rows that the server sends while the page is open, the newest first. Paused, they wait.
  const told = (what, text) => {
    for (const each of document.querySelectorAll("[data-stream-" + what + "]")) if (each.textContent !== text) each.textContent = text;
  };
  const insert = (body, html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    for (const row of holder.content.children) row.classList.add("new-row");
    localTimes(holder.content);
    body.prepend(holder.content);
    const keep = Number(body.dataset.streamKeep || 200);
    while (body.children.length > keep) body.lastElementChild.remove();
  };
  const streams = (root) => {
    for (const body of root.querySelectorAll("[data-stream]")) {
      if (body.source) continue;
      const source = (body.source = new EventSource(body.dataset.stream));
      body.waiting = null;
      source.addEventListener("open", () => told("state", "Live"));
      source.addEventListener("error", () => told("state", source.readyState === EventSource.CLOSED ? "Ended: load the page again" : "Connecting again…"));
      source.addEventListener("end", (event) => {
        source.close();
        told("state", event.data || "Ended: load the page again");
      });
      source.addEventListener("note", (event) => told("note", event.data));
      source.addEventListener("decision", (event) => {
        if (body.waiting === null) return insert(body, event.data);
        body.waiting.push(event.data);
        if (body.waiting.length > Number(body.dataset.streamKeep || 200)) body.waiting.shift();
      });
    }
  };
  const pause = (button) => {
    const body = document.querySelector("[data-stream]");
    const pausing = body.waiting === null;
    if (pausing) body.waiting = [];
    else {
      for (const html of body.waiting) insert(body, html);
      body.waiting = null;
    }
    button.setAttribute("aria-pressed", String(pausing));
    button.textContent = pausing ? "Resume" : "Pause";
  };
  addEventListener("pagehide", () => {
    for (const body of document.querySelectorAll("[data-stream]")) if (body.source) body.source.close();
  });

  document.addEventListener("click", async (event) => {
    const target = event.target.closest("[data-copy], [data-menu], [data-stream-pause]");
    if (!target) return;
    if ("copy" in target.dataset) {
      const text = target.parentElement.querySelector("pre").textContent;
      try {
        await navigator.clipboard.writeText(text);
        target.textContent = "Copied";
      } catch {
        // Without the right to the clipboard, the text is at least selected.
        getSelection().selectAllChildren(target.parentElement.querySelector("pre"));
        target.textContent = "Selected";
      }
    } else if ("menu" in target.dataset) {
      const open = document.getElementById("menu").classList.toggle("open");
      target.setAttribute("aria-expanded", String(open));
    } else pause(target);
  });
  // What was typed into a form whose session had ended is there again after signing in, in this tab alone. Passwords and
  // files are never kept, and what went through is forgotten with the next page.
  const TYPED = "typed";
  const typed = () => {
    try {
      return JSON.parse(sessionStorage.getItem(TYPED));
    } catch {
      return null;
    }
  };
  const keepTyped = (found) => {
    try {
      if (found) sessionStorage.setItem(TYPED, JSON.stringify(found));
      else sessionStorage.removeItem(TYPED);
    } catch {
      // Without storage, or with too much for it, nothing is kept.
    }
  };
  const remember = (form) => {
    if (form.method !== "post" || form.querySelector("input[type=password]")) return;
    const fields = [...new FormData(form)].filter(([name, value]) => name !== "csrf" && typeof value === "string");
    keepTyped({ page: location.pathname + location.search, action: form.getAttribute("action"), fields, lost: false });
  };
  const fillIn = (found) => {
    const form = [...document.forms].find((each) => each.getAttribute("action") === found.action && each.method === "post");
    if (!form) return;
    for (const each of form.elements) {
      if (!each.name || each.name === "csrf" || each.type === "hidden" || each.type === "file") continue;
      const values = found.fields.filter(([name]) => name === each.name).map(([, value]) => value);
      if (each.type === "checkbox" || each.type === "radio") each.checked = values.includes(each.value);
      else if (values.length) each.value = values[0];
    }
    say("You had been signed out. What you typed is filled in again; nothing was changed yet.", "info");
  };
  const restoreTyped = () => {
    const found = typed();
    if (!found) return;
    const signIn = document.querySelector("[data-signed-out]");
    if (signIn) {
      keepTyped({ ...found, lost: true });
      signIn.href = "/dashboard/sign-in?next=" + encodeURIComponent(found.page);
      return;
    }
    if (found.lost && location.pathname.startsWith("/dashboard/sign-in")) return;
    keepTyped(null);
    if (found.lost && location.pathname + location.search === found.page) fillIn(found);
  };

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.confirm && !confirm(form.dataset.confirm)) event.preventDefault();
    else remember(form);
  });
  // What belongs to one stop of a slider is shown at that stop.
  const panels = (slider) => {
    for (const each of document.querySelectorAll("[data-panel-of]"))
      if (each.dataset.panelOf === slider.id) each.hidden = !each.dataset.value.split(" ").map(Number).includes(Number(slider.value));
  };
  document.addEventListener("input", (event) => {
    if (event.target.type === "range") panels(event.target);
    const output = event.target.dataset && event.target.dataset.output && document.getElementById(event.target.dataset.output);
    if (output) output.textContent = event.target.value + (event.target.dataset.suffix || "");
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });

  // A field with too many choices to list asks for those that match. Its value is the chosen one's; its text stands beside.
  let asking;
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!field.matches("[data-search]")) return;
    clearTimeout(asking);
    asking = setTimeout(async () => {
      const address = new URL(location.href);
      address.searchParams.set("options", field.dataset.search);
      address.searchParams.set("typed", field.value);
      const reply = await fetch(address).catch(() => null);
      if (!reply || !reply.ok || !(reply.headers.get("content-type") || "").startsWith("application/json")) return;
      field.choices = new Map(await reply.json());
      field.list.replaceChildren(...[...field.choices].map(([value, text]) => Object.assign(document.createElement("option"), { value, label: text })));
      settle(field);
    }, 150);
  });
  const settle = (field) => {
    const choices = field.choices || new Map();
    const named = [...choices].filter(([, text]) => text === field.value);
    if (document.activeElement !== field && !choices.has(field.value) && named.length === 1) field.value = named[0][0];
    field.parentElement.querySelector("output").textContent = choices.get(field.value) || "";
  };
  document.addEventListener("focusout", (event) => {
    if (event.target.matches("[data-search]") && event.target.choices) settle(event.target);
  });

  // Somebody whose session ended is led to signing in, and not shown a page inside of a page.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const status = event.detail.xhr.status;
    if (status === 401) {
      const found = typed();
      if (found) keepTyped({ ...found, lost: true });
      location.reload();
    }
    // A form with faults is shown with them.
    if (status === 422) {
      event.detail.shouldSwap = true;
      event.detail.isError = false;
    }
  });
  // Who works by the keyboard goes on where they were: what is replaced gives the focus to the same thing in what came, or to the page.
  let held = null;
  const words = (each) => (each.getAttribute("aria-label") || each.textContent).trim();
  document.addEventListener("htmx:beforeRequest", (event) => {
    const active = document.activeElement;
    held = active && active !== document.body && event.detail.target.contains(active)
      ? { tag: active.tagName, name: active.getAttribute("name"), words: active.matches("input, select, textarea") ? null : words(active) }
      : held;
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (!held) return;
    if (document.activeElement === document.body) {
      const same = [...document.querySelectorAll("main " + held.tag)].find((each) => each.getAttribute("name") === held.name && (held.words === null || words(each) === held.words));
      (same || document.getElementById("content")).focus({ preventScroll: true });
    }
    held = null;
  });
  // What refreshes by itself rests while nobody looks, and while somebody has something open or in hand there.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.detail.elt;
    if (!part.hasAttribute("data-refresh")) return;
    const selected = getSelection();
    const inHand =
      part.contains(document.activeElement) ||
      part.querySelector("details[open]") ||
      [...part.querySelectorAll(".scroll")].some((each) => each.scrollLeft > 0) ||
      (selected.type === "Range" && part.contains(selected.anchorNode));
    if (document.hidden || inHand) event.preventDefault();
  });
  document.addEventListener("htmx:responseError", (event) => say("This part could not be loaded (error " + event.detail.xhr.status + "). Load the page again, or try later."));
  document.addEventListener("htmx:sendError", () => say("The gateway does not answer. What you see may be old."));
  document.addEventListener("htmx:afterOnLoad", () => document.getElementById("said")?.remove());
  const say = (text, tone = "bad") => {
    let said = document.getElementById("said");
    if (!said) {
      said = document.createElement("p");
      said.id = "said";
      said.className = "notice told " + tone;
      said.setAttribute("role", tone === "bad" ? "alert" : "status");
      document.getElementById("content").prepend(said);
    }
    said.textContent = text;
  };
  document.addEventListener("htmx:load", (event) => start(event.detail.elt));

  const start = (root) => {
    localTimes(root);
    charts(root);
    streams(root);
    // A browser may keep a slider's place over a reload.
    for (const slider of root.querySelectorAll("input[type=range]")) {
      panels(slider);
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
  };
  start(document);
  restoreTyped();
  // A long menu begins where the page is in it.
  document.querySelector(".side a[aria-current]")?.scrollIntoView({ block: "nearest" });
})();
