"use strict";
// The figures of the report as Vega-Lite specifications; compare/report/html/figures.py has their data.
const SPECS = (() => {
  // By route, as Vega names them.
  const SHAPES = {
    torch: "circle",
    triton: "triangle-up",
    cupy: "square",
    pybind: "diamond",
    library: "cross",
  };
  const WAYS = ["torch", "triton", "cuda", "library"];
  const CONFIG = {
    background: null,
    font: "system-ui, sans-serif",
    padding: 4,
    view: { stroke: null },
    axis: {
      labelColor: "var(--faint)",
      titleColor: "var(--faint)",
      gridColor: "var(--rule)",
      domainColor: "var(--rule)",
      tickColor: "var(--rule)",
      labelFontSize: 11,
      titleFontSize: 11,
      titleFontWeight: "normal",
      titlePadding: 8,
      labelOverlap: true,
      labelSeparation: 8,
    },
  };
  const COLOR = {
    field: "way",
    type: "nominal",
    scale: { domain: WAYS, range: WAYS.map((way) => `var(--${way})`) },
    legend: null,
  };
  const SHAPE = {
    field: "route",
    type: "nominal",
    scale: { domain: Object.keys(SHAPES), range: Object.values(SHAPES) },
    legend: null,
  };
  const POINT = { type: "point", filled: true, size: 60, opacity: 1, strokeWidth: 1.5 };
  // Of a point: a recorded time is hollow.
  const PAINT = {
    stroke: COLOR,
    fill: { ...COLOR, condition: { test: "datum.recorded", value: "var(--paper)" } },
    shape: SHAPE,
  };
  const TOLD = [
    { field: "label", title: "implementation" },
    { field: "shown", title: "µs, cold" },
    { field: "share", title: "share of ceiling", format: ".0%" },
  ];
  const HEIGHT = 320;

  const spec = (height, layers, more) => ({
    width: "container",
    height,
    autosize: { type: "fit-x", contains: "padding" },
    config: CONFIG,
    data: { name: "rows" },
    ...more,
    layer: layers,
  });
  const number = (field, title, scale, axis) => ({
    field,
    type: "quantitative",
    scale,
    axis: { title, ...axis },
  });
  const log = (field, title, axis, scale) =>
    number(
      field,
      `${title} (logarithmic)`,
      { type: "log", nice: false, ...scale },
      { format: ",.3~r", gridOpacity: 0.5, tickCount: 6, ...axis },
    );

  // All cold samples of every row, with median and 95% interval.
  function strip() {
    const range = [0, { expr: "max(40, width - 56)" }];
    const x = log("us", "µs, cold", { format: ",.4~r" }, { padding: 14, range });
    const y = {
      field: "label",
      type: "nominal",
      sort: null,
      axis: {
        title: null,
        domain: false,
        ticks: false,
        labelColor: "var(--ink)",
        labelLimit: 220,
      },
    };
    const interval = "format(datum.low, ',.4~r') + ' to ' + format(datum.high, ',.4~r')";
    return spec(
      HEIGHT,
      [
        {
          transform: [{ flatten: ["samples"], as: ["sample"] }, { filter: "datum.sample > 0" }],
          mark: { type: "tick", size: 12, thickness: 1, opacity: 0.3 },
          encoding: { x: { field: "sample", type: "quantitative" }, color: COLOR },
        },
        {
          mark: { type: "rule", strokeWidth: 3 },
          encoding: { x: { field: "low", type: "quantitative" }, x2: { field: "high" }, color: COLOR },
        },
        {
          transform: [
            { calculate: interval, as: "interval" },
            { calculate: "length(datum.samples)", as: "count" },
          ],
          mark: { ...POINT, size: 50 },
          encoding: {
            ...PAINT,
            tooltip: [
              ...TOLD,
              { field: "interval", title: "95% interval" },
              { field: "count", title: "samples" },
            ],
          },
        },
        {
          mark: { type: "text", align: "right", fontSize: 11 },
          encoding: {
            x: { value: { expr: "width" } },
            text: { field: "shown" },
            color: { value: "var(--ink)" },
          },
        },
      ],
      { encoding: { x, y } },
    );
  }

  // Achieved arithmetic rate over operational intensity, below the ceilings measured in the run.
  function roofline() {
    const x = log("x", "operational intensity, FLOP/B");
    const y = log("y", "TFLOP/s");
    const text = { type: "text", fontSize: 11, color: "var(--faint)" };
    return spec(
      HEIGHT,
      [
        {
          name: "other",
          data: { name: "other" },
          mark: { type: "line", strokeWidth: 1, color: "var(--faint)", clip: true },
          encoding: { order: { field: "x" } },
        },
        {
          name: "roof",
          data: { name: "roof" },
          mark: { type: "line", strokeWidth: 1.5, color: "var(--ink)", clip: true },
          encoding: { order: { field: "x" } },
        },
        {
          data: { name: "ridges" },
          mark: { type: "rule", strokeDash: [3, 3], color: "var(--faint)" },
          encoding: { y2: { value: { expr: "height" } } },
        },
        {
          name: "slope",
          data: { name: "slope" },
          mark: { ...text, align: "left", dx: 10, dy: 6 },
          encoding: { text: { field: "name" } },
        },
        {
          name: "flat",
          data: { name: "flat" },
          mark: { ...text, align: "right", dx: -2, dy: -8 },
          encoding: { text: { field: "name" } },
        },
        {
          name: "all",
          mark: POINT,
          encoding: {
            ...PAINT,
            tooltip: [
              ...TOLD,
              { field: "tflops", title: "TFLOP/s", format: ",.3~r" },
              { field: "gbs", title: "GB/s", format: ",.4~r" },
            ],
          },
        },
        {
          name: "named",
          transform: [{ filter: "datum.named" }],
          mark: { ...POINT, opacity: 0 },
        },
      ],
      {
        transform: [
          { calculate: "datum.intensity", as: "x" },
          { calculate: "datum.tflops", as: "y" },
        ],
        encoding: { x, y },
        usermeta: { labels: { of: "named", avoid: ["all", "roof", "flat", "slope", "other"] } },
      },
    );
  }

  // Speed over the tokens that it takes, with the Pareto front.
  function effort() {
    const x = log("tokens", "tokens of all the project's code that a call needs", { format: "," }, { padding: 60 });
    const y = number(
      "share",
      "share of ceiling",
      { domainMin: 0, nice: false, padding: 28 },
      { format: ".0%", tickCount: 6 },
    );
    return spec(
      HEIGHT,
      [
        {
          name: "steps",
          transform: [{ filter: "datum.front" }],
          mark: {
            type: "line",
            interpolate: "step-after",
            color: "var(--faint)",
            strokeWidth: 1.5,
          },
          encoding: { order: { field: "tokens" } },
        },
        {
          name: "last",
          transform: [
            { filter: "datum.front" },
            { joinaggregate: [{ op: "max", field: "share", as: "most" }] },
            { filter: "datum.share == datum.most" },
          ],
          mark: { type: "rule", color: "var(--faint)", strokeWidth: 1.5 },
          encoding: { x2: { value: "width" } },
        },
        {
          name: "all",
          transform: [
            { filter: "isValid(datum.front)" },
            // The label transform takes them in this order, and leaves out what finds no room.
            {
              window: [{ op: "row_number", as: "place" }],
              sort: [{ field: "front", order: "descending" }],
            },
          ],
          mark: POINT,
          encoding: {
            ...PAINT,
            size: { condition: { test: "datum.front", value: 90 }, value: 40 },
            tooltip: [...TOLD, { field: "tokens" }, { field: "lines" }],
          },
        },
      ],
      {
        encoding: { x, y },
        usermeta: { labels: { of: "all", avoid: ["steps", "last"] } },
      },
    );
  }

  // Share of the ceiling over one dimension: every row thin, the best of each way thick.
  function sweep() {
    const x = number(
      "x",
      null,
      { type: "log", base: 2, nice: false },
      {
        labelExpr:
          "datum.value % 1048576 == 0 ? datum.value / 1048576 + 'M' : " +
          "datum.value % 1024 == 0 ? datum.value / 1024 + 'K' : format(datum.value, ',')",
      },
    );
    const y = number(
      "share",
      "share of ceiling",
      { zero: true },
      { format: ".0%", tickCount: 6 },
    );
    return spec(
      HEIGHT,
      [
        {
          mark: { type: "line", strokeWidth: 1, opacity: 0.35 },
          encoding: { detail: { field: "label" }, color: COLOR },
        },
        {
          mark: { ...POINT, size: 22, strokeWidth: 1 },
          encoding: { ...PAINT, tooltip: [...TOLD, { field: "case" }] },
        },
        {
          transform: [
            {
              joinaggregate: [{ op: "max", field: "share", as: "most" }],
              groupby: ["way", "x"],
            },
            { filter: "datum.share == datum.most && datum.way != 'library'" },
          ],
          mark: { type: "line", strokeWidth: 2.5 },
          encoding: { color: COLOR },
        },
      ],
      {
        transform: [{ filter: "isValid(datum.share)" }],
        encoding: { x, y },
      },
    );
  }

  // The time of every configuration that --tune tried, and of the default.
  function tuning() {
    const x = { field: "values", type: "nominal", sort: { field: "place" }, axis: { title: null, labelAngle: -30, labelOverlap: false } };
    return spec(
      HEIGHT,
      [
        { mark: { type: "line", strokeWidth: 1, opacity: 0.6 }, encoding: { detail: { field: "tuned" }, color: COLOR } },
        { mark: POINT, encoding: { ...PAINT, tooltip: [...TOLD, { field: "values" }] } },
      ],
      {
        transform: [{ filter: "isValid(datum.tuned)" }],
        encoding: { x, y: log("us", "µs, cold") },
      },
    );
  }

  return { tuning: tuning(), strip: strip(), roofline: roofline(), effort: effort(), sweep: sweep() };
})();
