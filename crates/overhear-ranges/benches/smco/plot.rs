// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plots as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 56.0;
const COLOURS: [&str; 4] = ["#1f5fa8", "#c2571a", "#4d7d2a", "#7a4b9a"];

/// A line with a half width at each point.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) points: Vec<(f64, f64, f64)>,
    /// Without marks and intervals, dotted.
    pub(crate) is_ideal: bool,
}

/// Title and axes of a plot.
pub(crate) struct Axes<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// A plot of lines whose axes start at 0.
pub(crate) fn plot(axes: &Axes<'_>, lines: &[Line<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let right = points().map(|point| point.0).fold(1e-9, f64::max);
    let top = points().map(|point| point.1 + point.2).fold(1e-9, f64::max) * 1.05;
    let x_of = |x: f64| LEFT + x / right * (WIDTH - LEFT - RIGHT);
    let y_of = |y: f64| HEIGHT - BOTTOM - (y / top).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let middle = WIDTH / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"20\" text-anchor=\"middle\" font-size=\"14\">{}</text>\n\
         <text x=\"{middle}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(16 {:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escaped(axes.title),
        HEIGHT - 8.0,
        escaped(axes.x),
        HEIGHT / 2.0,
        escaped(axes.y)
    );
    for tick in 0..=5 {
        let part = f64::from(tick) / 5.0;
        let (x, y) = (x_of(part * right), y_of(part * top));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            number(part * top),
            HEIGHT - BOTTOM + 18.0,
            number(part * right)
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = line
            .points
            .iter()
            .map(|(x, y, _)| format!("{:.1},{:.1}", x_of(*x), y_of(*y)))
            .collect();
        let dash = if line.is_ideal {
            " stroke-dasharray=\"3 3\""
        } else {
            ""
        };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dash}/>",
            path.join(" ")
        );
        let many = line.points.len() > 40;
        for (x, y, half) in line.points.iter().filter(|_| !line.is_ideal && !many) {
            let x = x_of(*x);
            let half = if half.is_finite() { *half } else { 0.0 };
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n\
                 <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                y_of(y - half),
                y_of(y + half),
                y_of(*y)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
            LEFT + 10.0,
            TOP + 14.0 * (index as f64 + 1.0),
            escaped(line.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A label of a tick: short at any magnitude.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.1}G", value / 1e9),
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e4 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
