"use strict";
// Draws what the page's data say. All text from the data reaches the page as text, never as HTML.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = 9;
  const AXIS_WIDTH = 104;  // of memory plots and timelines, so that their times lie above one another
  const SVG = "http://www.w3.org/2000/svg";

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function add(parent, tag, attributes, text) {
    const element = tag === "div" || tag === "span" || tag === "label" || tag === "select" || tag === "option"
      ? document.createElement(tag) : document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  function numberText(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    return String(Number(value.toPrecision(5)));
  }

  function bytesText(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; Math.abs(value) >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
    return numberText(Number(value.toPrecision(4))) + " " + units[unit];
  }

  // entries: {label, colour, value, dot}. Built of nodes, as labels are not to be read as HTML.
  function showLegend(element, entries, note) {
    element.replaceChildren();
    for (const entry of entries) {
      const item = add(element, "span", { class: "entry" });
      add(item, "span", { class: entry.dot ? "swatch dot" : "swatch" }).style.background = entry.colour;
      item.appendChild(document.createTextNode(entry.label + (entry.value ? ": " + entry.value : "")));
    }
    if (note) add(element, "span", {}, note);
  }

  // ---------------------------------------------------------------- curves over steps

  // Rows of dygraphs: the step, then a value for each curve. null: not logged there; NaN: a gap.
  function rowsOf(curves) {
    const rows = new Map();
    curves.forEach((curve, index) => {
      curve.steps.forEach((step, i) => {
        if (!rows.has(step)) rows.set(step, [step].concat(curves.map(() => null)));
        rows.get(step)[index + 1] = curve.values[i] === null ? NaN : curve.values[i];
      });
    });
    return Array.from(rows.values()).sort((a, b) => a[0] - b[0]);
  }

  const graphs = [];

  function zoomOthers(from, least, most) {
    for (const other of graphs) {
      if (other.graph !== from) other.graph.updateOptions({ dateWindow: [least, most] });
    }
  }

  function curveStyles(curves, pointed) {
    const series = {};
    curves.forEach((curve, i) => {
      const shade = colour("series-" + (curve.run % COLOURS));
      series["c" + i] = curve.as_dots
        ? { color: shade, strokeWidth: 0, drawPoints: true, pointSize: 5, highlightCircleSize: 6 }
        : { color: shade, strokeWidth: 1.8, strokePattern: curve.run < COLOURS ? null : [6, 4],
            drawPoints: pointed || curve.steps.length < 3, pointSize: 3 };
    });
    return series;
  }

  // Plots that have runs of their own also have an axis of their own.
  function place(plot, x) {
    return (plot.x || "step") + " " + x;
  }

  function axes(plot) {
    const text = plot.unit === "bytes" ? bytesText : numberText;
    return {
      x: { drawGrid: false, valueFormatter: (step) => place(plot, step), axisLabelFormatter: (step) => Number.isInteger(step) ? String(step) : "" },
      y: { axisLabelWidth: 76, labelsKMG2: plot.unit === "bytes", valueFormatter: text, axisLabelFormatter: text },
    };
  }

  function drawCurves(plot) {
    const figure = document.getElementById("plot-" + plot.id);
    const box = figure.querySelector(".plot");
    const legend = figure.querySelector(".legend");
    const names = plot.curves.map((curve) =>
      plot.runs ? plot.runs[curve.run] : data.runs[curve.run] + (curve.as_dots ? ", evaluation" : ""));
    const rows = rowsOf(plot.curves);
    function entries(values) {
      return plot.curves.map((curve, i) => ({
        label: names[i], dot: curve.as_dots, colour: colour("series-" + (curve.run % COLOURS)),
        value: values ? values(i) : "",
      }));
    }
    const graph = new Dygraph(box, rows, {
      labels: ["step"].concat(plot.curves.map((_, i) => "c" + i)),
      series: curveStyles(plot.curves, plot.runs),
      axes: axes(plot),
      includeZero: plot.from_zero,
      xRangePad: 6,
      yRangePad: 12,
      connectSeparatedPoints: true,
      axisLineColor: colour("line"),
      gridLineColor: colour("line"),
      legend: "never",
      highlightCircleSize: 4,
      highlightCallback: (_, step, points) => {
        const text = plot.unit === "bytes" ? bytesText : numberText;
        const at = new Map(points.map((point) => [point.name, point.yval]));
        showLegend(legend, entries((i) => text(at.get("c" + i))), place(plot, step));
      },
      unhighlightCallback: () => showLegend(legend, entries()),
      zoomCallback: (least, most) => plot.runs || zoomOthers(graph, least, most),
    });
    showLegend(legend, entries());
    graphs.push({ graph, plot, recolour: () => {
      graph.updateOptions({ series: curveStyles(plot.curves, plot.runs), axisLineColor: colour("line"), gridLineColor: colour("line") });
      showLegend(legend, entries());
    } });
  }

  // ---------------------------------------------------------------- one step

  const KINDS = [["compute", "computation"], ["wait", "waiting"], ["gather", "gather in progress"],
    ["reduce", "reduction in progress"], ["limiter", "gather held back"], ["step", "part of the step"],
    ["stage_forward", "forward pass of a micro-batch"], ["stage_backward", "backward pass"],
    ["stage_input_gradient", "gradients of inputs"], ["stage_weight_gradient", "gradients of weights"],
    ["stage_wait", "waiting for another stage"]];
  const ROW = 17;

  // Draws all ranks between the times `least` and `most`.
  function drawTimeline(box, step, least, most) {
    const width = Math.max(320, box.clientWidth);
    const scale = (width - AXIS_WIDTH - 8) / (most - least);
    const place = (time) => AXIS_WIDTH + (Math.min(Math.max(time, least), most) - least) * scale;
    const rows = step.ranks.reduce((sum, rank) => sum + rank.rows.length + 1.4, 0);
    const height = rows * ROW + 26;
    box.replaceChildren();
    const svg = add(box, "svg", { viewBox: "0 0 " + width + " " + height, height: height, "aria-hidden": "true" });
    let y = 0;
    for (const rank of step.ranks) {
      add(svg, "text", { x: 0, y: y + 14, class: "rank" }, "rank " + rank.rank);
      y += ROW * 1.1;
      for (const row of rank.rows) {
        drawRow(svg, row, y, place, width);
        y += ROW;
      }
      y += ROW * 0.3;
    }
    drawTimes(svg, y + 4, width, least, most, place);
  }

  function drawRow(svg, row, y, place, width) {
    const short = { "held back by limit_all_gathers": "held back" };
    add(svg, "text", { x: AXIS_WIDTH - 8, y: y + 12, "text-anchor": "end" }, short[row.name] || row.name);
    add(svg, "line", { x1: AXIS_WIDTH, x2: width - 8, y1: y + ROW - 1.5, y2: y + ROW - 1.5, class: "axis" });
    for (const [begin, end, kind, name, pass] of row.ranges) {
      const x = place(begin), length = place(end) - x;
      if (length <= 0) continue;
      const bar = add(svg, "rect", { x: x.toFixed(2), y: y + 1, width: Math.max(0.6, length).toFixed(2), height: ROW - 3,
        class: KINDS.some(([known]) => known === kind) ? kind : "" });
      add(bar, "title", {}, name + " (" + pass + "): " + numberText(end - begin) + " ms, from " + numberText(begin) + " ms");
      if ((kind === "step" || kind.startsWith("stage_")) && length > 7 * name.length) {
        add(svg, "text", { x: x + 4, y: y + 12, class: "inside" }, name);
      }
    }
  }

  function drawTimes(svg, y, width, least, most, place) {
    const ticks = Math.max(2, Math.floor((width - AXIS_WIDTH) / 110));
    const rough = (most - least) / ticks;
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const distance = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    for (let time = Math.ceil(least / distance) * distance; time <= most; time += distance) {
      const x = place(time);
      add(svg, "line", { x1: x, x2: x, y1: y - 4, y2: y, class: "axis" });
      const anchor = x > width - 50 ? "end" : x < AXIS_WIDTH + 10 ? "start" : "middle";
      add(svg, "text", { x: x, y: y + 13, "text-anchor": anchor }, numberText(Number(time.toPrecision(6))) + " ms");
    }
  }

  function timelineLegend(step) {
    const used = new Set();
    for (const rank of step.ranks) for (const row of rank.rows) for (const range of row.ranges) used.add(range[2]);
    return KINDS.filter(([kind]) => used.has(kind) && kind !== "step")
      .map(([kind, label]) => ({ label, colour: colour(kind) }));
  }

  // The state after each sample lasts until the next one, and to the step's end.
  function memoryRows(rank, length) {
    const rows = rank.memory.map((sample) => sample.slice());
    if (rows.length) rows.push([Math.max(length, rows[rows.length - 1][0])].concat(rows[rows.length - 1].slice(1)));
    return rows;
  }

  function chooseRank(figure, step, onChange) {
    const label = add(figure.querySelector("figcaption"), "label", {}, " of ");
    label.style.fontWeight = "400";
    const select = add(label, "select", {});
    step.ranks.forEach((rank, i) => add(select, "option", { value: i }, "rank " + rank.rank));
    select.addEventListener("change", () => onChange(step.ranks[Number(select.value)]));
  }

  // phases: [begin, name].
  function drawPhases(canvas, area, graph, phases) {
    canvas.strokeStyle = colour("faint");
    canvas.setLineDash([3, 4]);
    canvas.beginPath();
    for (const [begin] of phases.slice(1)) {
      const x = graph.toDomXCoord(begin);
      canvas.moveTo(x, area.y);
      canvas.lineTo(x, area.y + area.h);
    }
    canvas.stroke();
    canvas.setLineDash([]);
  }

  function drawMemory(figure, step, onZoom) {
    const box = figure.querySelector(".plot");
    const legend = figure.querySelector(".legend");
    box.classList.add("memory");
    let rank = step.ranks[0];
    // dygraphs puts the last series at the bottom of the stack.
    const order = () => rank.categories.map((_, i) => rank.categories.length - 1 - i);
    const rows = () => memoryRows(rank, step.length).map((row) => [row[0]].concat(order().map((i) => row[i + 1])));
    const shades = () => order().map((i) => colour("series-" + (i % COLOURS)));
    const entries = (values) => rank.categories.map((name, i) => ({
      label: name, colour: colour("series-" + (i % COLOURS)), value: values ? bytesText(values(i)) : "" }));
    const options = () => ({ file: rows(), labels: [step.unit].concat(order().map((i) => "c" + i)), colors: shades(),
      axisLineColor: colour("line"), gridLineColor: colour("line") });
    const first = options();
    const graph = new Dygraph(box, first.file, Object.assign({}, first, {
      file: undefined,
      stackedGraph: true,
      stepPlot: true,
      fillAlpha: 0.75,
      strokeWidth: 0.7,
      includeZero: true,
      rightGap: 8,
      dateWindow: [0, step.length],
      axes: {
        x: { drawGrid: false, axisLabelFormatter: (time) => numberText(Number(time.toPrecision(6))) + " " + step.unit },
        y: { axisLabelWidth: AXIS_WIDTH - 6, labelsKMG2: true, axisLabelFormatter: bytesText },
      },
      legend: "never",
      highlightCircleSize: 0,
      highlightCallback: (_, time, __, row) => {
        const sample = rank.memory[Math.min(row, rank.memory.length - 1)];
        const total = sample.slice(1).reduce((sum, bytes) => sum + bytes, 0);
        showLegend(legend, entries((i) => sample[i + 1]), "together " + bytesText(total) + " at " + numberText(time) + " " + step.unit);
      },
      unhighlightCallback: () => showLegend(legend, entries()),
      drawCallback: (drawn) => onZoom(drawn.xAxisRange()),
      underlayCallback: (canvas, area, drawn) => drawPhases(canvas, area, drawn, step.phases || []),
    }));
    const redraw = () => { graph.updateOptions(options()); showLegend(legend, entries()); };
    showLegend(legend, entries());
    if (step.ranks.length > 1) chooseRank(figure, step, (chosen) => { rank = chosen; redraw(); });
    return redraw;
  }

  const steps = [];

  function drawStep(step) {
    const timeline = document.getElementById("step-" + step.run + "-timeline");
    const memory = document.getElementById("step-" + step.run + "-memory");
    let shown = [0, step.length];
    const redraw = () => timeline && drawTimeline(timeline.querySelector(".plot"), step, shown[0], shown[1]);
    const legend = () => timeline && showLegend(timeline.querySelector(".legend"), timelineLegend(step));
    if (timeline) timeline.querySelector(".plot").classList.add("timeline");
    redraw();
    legend();
    const recolourMemory = memory && drawMemory(memory, step, (range) => {
      if (range[0] === shown[0] && range[1] === shown[1]) return;
      shown = range;
      redraw();
    });
    steps.push({ redraw, recolour: () => { legend(); if (recolourMemory) recolourMemory(); } });
  }

  // ---------------------------------------------------------------- the page

  function onControls() {
    const logScale = document.getElementById("log-scale");
    const smoothing = document.getElementById("smoothing");
    if (!logScale) return;
    logScale.addEventListener("change", () => {
      for (const { graph, plot } of graphs) {
        if (plot.id === "loss" || plot.id === "grad_norm") graph.updateOptions({ logscale: logScale.checked });
      }
    });
    smoothing.addEventListener("change", () => {
      const count = Math.min(1000, Math.max(1, Math.round(Number(smoothing.value) || 1)));
      smoothing.value = count;
      for (const { graph } of graphs) graph.updateOptions({ rollPeriod: count });
    });
  }

  data.plots.forEach(drawCurves);
  data.steps.forEach(drawStep);
  onControls();
  window.addEventListener("resize", () => steps.forEach((step) => step.redraw()));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    graphs.concat(steps).forEach((one) => one.recolour());
  });
  document.documentElement.setAttribute("data-drawn", data.plots.length + data.steps.length);
})();
