// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model as a picture.
//!
//! Colour is never the only sign: an error is also marked by `!`, so that the picture is complete
//! without colours.

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};
use ratatui::Frame;

use super::bars::{bars, bars_between};
use super::model::{Model, Page, SensorKey, ThreadKey};
use super::snapshot::{maybe, time, FieldRow, SensorRow};
use crate::text::width::Width;
use overhear_event::Nanos;
use overhear_session::display::{self, TextDisplay};
use overhear_session::format::{number, printable, rate};
use overhear_session::listing::State;

/// Minimum height of a terminal in lines that shows the selected sensor below the table.
const MIN_DETAIL_HEIGHT: u16 = 16;
/// Share of the declared rate in per cent below which a rate is marked.
const SLOW_PERCENT: f64 = 90.0;

/// Draws the model. Without `coloured` no colour is used.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model, coloured: bool) {
    let paint = Paint(coloured);
    let area = frame.area();
    let shows_detail = area.height >= MIN_DETAIL_HEIGHT
        && model.page == Page::Sensors
        && model.selected_sensor().is_some();
    let detail = if shows_detail { 6 } else { 0 };
    let [head, table, below, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(detail),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(headline(model, &paint)), head);
    match model.page {
        Page::Sensors => sensors(frame, table, model, &paint),
        Page::Threads if model.shows_tasks() => tasks(frame, table, model, &paint),
        Page::Threads => threads(frame, table, model, &paint),
        Page::Histograms => histograms(frame, table, model),
        Page::Budget => budget(frame, table, model, &paint),
        Page::Samples => samples(frame, table, model),
    }
    if let Some(sensor) = model.selected_sensor().filter(|_| shows_detail) {
        self::detail(frame, below, model, sensor, &paint);
    }
    frame.render_widget(Paragraph::new(footline(model, &paint)), foot);
    if model.help {
        help(frame, area, &paint);
    }
}

/// Styles, with or without colours.
struct Paint(bool);

impl Paint {
    fn colour(&self, colour: Color) -> Style {
        if self.0 {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    fn bad(&self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn doubtful(&self) -> Style {
        self.colour(Color::Yellow)
    }

    fn good(&self) -> Style {
        self.colour(Color::Green)
    }

    fn faint(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn head(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    fn chosen(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

fn headline<'a>(model: &Model, paint: &Paint) -> Vec<Line<'a>> {
    let snapshot = &model.snapshot;
    let total: f64 = snapshot.sensors.iter().filter_map(|s| s.rate_hz).sum();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    // Losses come first: a narrow terminal cuts the end.
    let mut first = vec![Span::styled("overhear top", bold), Span::raw("  ")];
    first.push(match (snapshot.missed, snapshot.complete) {
        (0, true) => Span::styled("nothing missed", paint.good()),
        (0, false) => Span::styled("INCOMPLETE!", paint.bad()),
        (missed, _) => Span::styled(format!("{missed} MISSED!"), paint.bad()),
    });
    if let Some(budget) = &snapshot.budget {
        first.push(Span::raw(format!(
            "  budget {}: {}",
            percent(budget.target),
            percent(budget.observed)
        )));
    }
    if model.paused {
        first.push(Span::raw("  "));
        first.push(Span::styled(" paused ", paint.chosen()));
    }
    first.push(Span::raw(
        if snapshot.sensors.is_empty() && !model.shows_tasks() {
            format!("  {}", count(snapshot.threads.len(), "thread"))
        } else {
            format!(
                "  {} of {}  {}  {}",
                count(snapshot.sensors.len(), "sensor"),
                count(snapshot.tasks.len(), "task"),
                rate(total),
                count_u64(snapshot.elements, "element"),
            )
        },
    ));
    let mut second = Vec::new();
    let threads = if model.shows_tasks() {
        "2 Tasks"
    } else {
        "2 Threads"
    };
    for page in model.pages() {
        let name = match page {
            Page::Sensors => "1 Sensors",
            Page::Threads => threads,
            Page::Histograms => "3 Histograms",
            Page::Budget => "4 Budget",
            Page::Samples => "5 Samples",
        };
        let style = if page == model.page {
            paint.chosen()
        } else {
            Style::new()
        };
        second.push(Span::styled(format!(" {name} "), style));
        second.push(Span::raw(" "));
    }
    if let Some(note) = snapshot.notes.last() {
        second.push(Span::styled(printable(note), paint.doubtful()));
    } else if model.page == Page::Threads && !snapshot.kernel.is_empty() {
        second.push(Span::styled(printable(&snapshot.kernel), paint.faint()));
    }
    vec![Line::from(first), Line::from(second)]
}

/// A share of the CPU time.
fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn count(number: usize, noun: &str) -> String {
    count_u64(number as u64, noun)
}

fn count_u64(number: u64, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

fn footline<'a>(model: &Model, paint: &Paint) -> Line<'a> {
    if model.typing {
        let keys = "  Enter keeps it, Esc clears it";
        return Line::from(vec![
            Span::raw(format!("/{}", model.filter)),
            Span::styled(" ", paint.chosen()),
            Span::styled(keys, paint.faint()),
        ]);
    }
    if !model.message.is_empty() {
        return Line::styled(printable(&model.message), paint.doubtful());
    }
    let mut keys = String::from("q quit  ? help  Tab page  s sort  / filter  p pause");
    if model.page == Page::Sensors {
        keys.push_str("  ←→ course  o on/off");
    }
    if model.filter.is_empty() {
        Line::styled(keys, paint.faint())
    } else {
        Line::from(vec![
            Span::styled(format!("/{}", model.filter), paint.doubtful()),
            Span::styled(format!("  Esc shows all  {keys}"), paint.faint()),
        ])
    }
}

/// A column of a table.
struct Column {
    head: &'static str,
    width: u16,
    /// Rank in which columns are left out without room: the highest first, 0 never.
    expendable: u8,
    /// Whether cells are aligned on the right.
    right: bool,
    /// Whether rows are sorted by this column; its head is marked.
    sorts: bool,
}

impl Column {
    const fn new(head: &'static str, width: u16, expendable: u8, right: bool, sorts: bool) -> Self {
        Self {
            head,
            width,
            expendable,
            right,
            sorts,
        }
    }
}

/// For each of these columns whether it has room.
fn fitting(columns: &[Column], room: u16) -> Vec<bool> {
    let mut shown = vec![true; columns.len()];
    loop {
        let used: u16 = columns
            .iter()
            .zip(&shown)
            .filter(|(_, shown)| **shown)
            .map(|(column, _)| column.width + 1)
            .sum();
        if used <= room + 1 {
            return shown;
        }
        let victim = (0..columns.len())
            .filter(|&index| shown[index] && columns[index].expendable > 0)
            .max_by_key(|&index| columns[index].expendable);
        match victim {
            Some(index) => shown[index] = false,
            None => return shown,
        }
    }
}

/// Renders rows of cells under the columns that have room. The column `grows` takes the rest of the
/// width.
fn table<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[Column],
    rows: Vec<Vec<Span<'a>>>,
    grows: Option<usize>,
    model: &Model,
    paint: &Paint,
) {
    let shown = fitting(columns, area.width);
    let kept = |index: usize| shown[index];
    let heads = columns
        .iter()
        .enumerate()
        .filter(|(index, _)| kept(*index))
        .map(|(_, column)| {
            let mark = match (column.sorts, model.reversed) {
                (true, false) => "▾",
                (true, true) => "▴",
                _ => "",
            };
            let head = format!("{}{mark}", column.head);
            Cell::from(aligned(Span::styled(head, paint.head()), column.right))
        });
    let body = rows.into_iter().map(|row| {
        Row::new(
            row.into_iter()
                .enumerate()
                .filter(|(index, _)| kept(*index))
                .map(|(index, span)| Cell::from(aligned(span, columns[index].right))),
        )
    });
    let widths = columns
        .iter()
        .enumerate()
        .filter(|(index, _)| kept(*index))
        .map(|(index, column)| match Some(index) == grows {
            true => Constraint::Min(column.width),
            false => Constraint::Length(column.width),
        });
    let drawn = Table::new(body, widths)
        .header(Row::new(heads))
        .row_highlight_style(paint.chosen());
    let mut state = TableState::new().with_selected(Some(model.selected_row()));
    frame.render_stateful_widget(drawn, area, &mut state);
}

fn aligned(span: Span<'_>, right: bool) -> Line<'_> {
    let line = Line::from(span);
    if right {
        line.right_aligned()
    } else {
        line
    }
}

/// Length of the longest of these names, from `least` to `most`.
fn width_of<'a>(names: impl Iterator<Item = &'a str>, least: u16, most: u16) -> u16 {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
    u16::try_from(longest).unwrap_or(most).clamp(least, most)
}

fn sensors(frame: &mut Frame<'_>, area: Rect, model: &Model, paint: &Paint) {
    let sensors = model.sensors();
    if sensors.is_empty() {
        let message = if model.snapshot.sensors.is_empty() {
            "no sensor matches yet; those that appear are shown"
        } else {
            "no sensor matches the filter; Esc shows all"
        };
        frame.render_widget(Paragraph::new(message).style(paint.faint()), area);
        return;
    }
    let by = |key| model.sensor_key == key;
    let names: Vec<String> = sensors.iter().map(|s| s.identity.name()).collect();
    let name_width = width_of(names.iter().map(String::as_str), 8, 24);
    let task_width = width_of(sensors.iter().map(|s| s.identity.task.as_str()), 8, 22);
    let values: Vec<String> = sensors.iter().map(|s| s.values_text()).collect();
    let value_width = width_of(values.iter().map(String::as_str), 12, 30);
    let columns = [
        Column::new("sensor", name_width, 0, false, by(SensorKey::Name)),
        Column::new("task", task_width, 2, false, by(SensorKey::Task)),
        Column::new("rate", 10, 0, true, by(SensorKey::Rate)),
        Column::new("declared", 10, 5, true, false),
        Column::new("of decl", 8, 3, true, by(SensorKey::Declared)),
        Column::new("elements", 10, 6, true, by(SensorKey::Elements)),
        Column::new("missed", 8, 0, true, by(SensorKey::Missed)),
        Column::new("p50", 8, 8, true, false),
        Column::new("p99", 8, 4, true, by(SensorKey::Interval)),
        Column::new("", 5, 1, false, false),
        Column::new("course", 20, 9, false, false),
        Column::new("values", value_width, 7, false, false),
    ];
    let rows = sensors
        .iter()
        .zip(names.into_iter().zip(values))
        .map(|(sensor, (name, values))| sensor_cells(sensor, &name, values, paint))
        .collect();
    table(frame, area, &columns, rows, Some(11), model, paint);
}

fn sensor_cells<'a>(
    sensor: &SensorRow,
    name: &str,
    values: String,
    paint: &Paint,
) -> Vec<Span<'a>> {
    let declared = sensor.identity.declared;
    let dead = match sensor.state {
        State::On => Style::new(),
        State::Off | State::Ended => paint.faint(),
    };
    let early = sensor.too_early.unwrap_or(0) > 0;
    let share = match sensor.share_of_declared() {
        Some(share) if early => Span::styled(format!("{share:.0} %!"), paint.bad()),
        Some(share) if share < SLOW_PERCENT && sensor.state == State::On => {
            Span::styled(format!("{share:.0} %!"), paint.doubtful())
        }
        Some(share) => Span::styled(format!("{share:.0} %"), dead),
        None => Span::styled("-", dead),
    };
    let missed = match (sensor.missed, sensor.gaps) {
        (0, 0) => Span::styled("0", dead),
        (0, _) => Span::styled("damage!", paint.bad()),
        (missed, _) => Span::styled(format!("{missed}!"), paint.bad()),
    };
    let state = match sensor.state {
        State::On => Span::raw(""),
        state => Span::styled(state.name(), paint.doubtful()),
    };
    vec![
        Span::styled(printable(name), dead),
        Span::styled(printable(&sensor.identity.task), dead),
        Span::styled(maybe(sensor.rate_hz, rate), dead),
        Span::styled(
            maybe(declared, |d| rate(1e9 / d.period_ns.max(1) as f64)),
            dead,
        ),
        share,
        Span::styled(sensor.elements.to_string(), dead),
        missed,
        Span::styled(maybe(sensor.interval_ns, |q| time(q.median)), dead),
        Span::styled(maybe(sensor.interval_ns, |q| time(q.p99)), dead),
        state,
        Span::styled(bars(&sensor.course, 20), paint.colour(Color::Cyan)),
        Span::styled(values, dead),
    ]
}

/// Draws a sensor below the table: its declared rate, its intervals, and one course.
fn detail(frame: &mut Frame<'_>, area: Rect, model: &Model, sensor: &SensorRow, paint: &Paint) {
    let identity = &sensor.identity;
    let title = format!(
        " {}/{} : {} ",
        printable(&identity.task),
        printable(&identity.name()),
        printable(&identity.type_id)
    );
    let block = Block::bordered().title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let declaration = match (identity.declared, sensor.too_early) {
        (Some(d), early) => {
            let early = early.unwrap_or(0);
            let kept = if early == 0 {
                Span::styled("kept", paint.good())
            } else {
                let elements = count_u64(early, "element");
                Span::styled(format!("{elements} too early!"), paint.bad())
            };
            let bound = format!(
                "declared T {}, D {}, tau {}: ",
                time(d.period_ns),
                time(d.distance_ns),
                time(d.jitter_ns)
            );
            vec![Span::raw(bound), kept]
        }
        _ => vec![Span::styled("no rate declared", paint.faint())],
    };
    let intervals = maybe(sensor.interval_ns, |q| {
        format!(
            "min {}  p50 {}  p99 {}  max {}",
            time(q.min),
            time(q.median),
            time(q.p99),
            time(q.max)
        )
    });
    let track = model.track % (sensor.values.len() + 1);
    let field = track
        .checked_sub(1)
        .and_then(|index| sensor.values.get(index));
    let (label, course) = match field {
        None => ("rate".to_string(), &sensor.course),
        Some(field) => (field_label(field), &field.course),
    };
    let width = usize::from(inside.width);
    let room = width.saturating_sub(label.chars().count() + 26);
    let known = || course.iter().flatten().copied().filter(|v| v.is_finite());
    let range = match known().next() {
        None => "no numbers".to_string(),
        Some(_) => {
            let least = known().fold(f64::INFINITY, f64::min);
            let greatest = known().fold(f64::NEG_INFINITY, f64::max);
            match field {
                None => format!("{} .. {}", rate(least), rate(greatest)),
                Some(_) => format!("{} .. {}", number(least), number(greatest)),
            }
        }
    };
    let lines = vec![
        Line::from(declaration),
        Line::raw(format!("intervals: {intervals}")),
        Line::from(vec![
            Span::raw(format!("{label} ")),
            Span::styled(bars(course, room), paint.colour(Color::Cyan)),
            Span::styled(format!(" {range}"), paint.faint()),
        ]),
        Line::raw(sensor.values_text()),
    ];
    frame.render_widget(Paragraph::new(lines), inside);
}

fn field_label(field: &FieldRow) -> String {
    if field.unit.is_empty() {
        printable(&field.name)
    } else {
        printable(&format!("{} [{}]", field.name, field.unit))
    }
}

fn threads(frame: &mut Frame<'_>, area: Rect, model: &Model, paint: &Paint) {
    let by = |key| model.thread_key == key;
    let threads = model.threads();
    let width = width_of(threads.iter().map(|t| t.comm.as_str()), 8, 16);
    let columns = [
        Column::new("thread", width, 0, false, by(ThreadKey::Name)),
        Column::new("pid", 8, 5, true, false),
        Column::new("tid", 8, 0, true, by(ThreadKey::Tid)),
        Column::new("run", 8, 0, true, by(ThreadKey::Run)),
        Column::new("runnable", 9, 0, true, by(ThreadKey::Runnable)),
        Column::new("vol/s", 8, 4, true, false),
        Column::new("invol/s", 9, 3, true, by(ThreadKey::Involuntary)),
        Column::new("migr", 8, 6, true, false),
        Column::new("wake p50", 9, 7, true, false),
        Column::new("p99", 8, 2, true, false),
        Column::new("max", 8, 1, true, by(ThreadKey::Latency)),
    ];
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rows = threads
        .iter()
        .map(|thread| {
            let latency = thread.wakeup_latency_ns;
            [
                printable(&thread.comm),
                thread.pid.to_string(),
                thread.tid.to_string(),
                percent(thread.run),
                maybe(thread.runnable, percent),
                number(thread.voluntary_hz),
                number(thread.involuntary_hz),
                thread.migrations.to_string(),
                maybe(latency, |q| time(q.median)),
                maybe(latency, |q| time(q.p99)),
                maybe(latency, |q| time(q.max)),
            ]
            .map(Span::raw)
            .to_vec()
        })
        .collect();
    table(frame, area, &columns, rows, None, model, paint);
}

fn tasks(frame: &mut Frame<'_>, area: Rect, model: &Model, paint: &Paint) {
    let tasks = model.tasks();
    let width = width_of(tasks.iter().map(|t| t.task.as_str()), 8, 30);
    let columns = [
        Column::new("task", width, 0, false, false),
        Column::new("sensors", 8, 1, true, false),
        Column::new("rate", 10, 0, true, false),
        Column::new("elements", 12, 2, true, false),
        Column::new("missed", 10, 0, true, false),
    ];
    let rows = tasks
        .iter()
        .map(|task| {
            let missed = match task.missed {
                0 => Span::raw("0"),
                missed => Span::styled(format!("{missed}!"), paint.bad()),
            };
            vec![
                Span::raw(printable(&task.task)),
                Span::raw(task.sensors.to_string()),
                Span::raw(rate(task.rate_hz)),
                Span::raw(task.elements.to_string()),
                missed,
            ]
        })
        .collect();
    table(frame, area, &columns, rows, None, model, paint);
}

/// Draws the selected histogram, and those after it that have room.
fn histograms(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let all = &model.snapshot.histograms;
    let first = model.selected_row().min(all.len().saturating_sub(1));
    let mut display = TextDisplay::new(usize::from(area.width));
    display::show(&all[first..], &mut display);
    frame.render_widget(Paragraph::new(display.into_text()), area);
}

/// Draws the tables of samplers, from the selected line on.
fn samples(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let width = Width::columns(usize::from(area.width));
    let text = crate::text::samples::render(&model.snapshot.samplers, width);
    let rest = text.lines().skip(model.selected_row());
    let rest: Vec<Line<'_>> = rest.map(Line::from).collect();
    frame.render_widget(Paragraph::new(rest), area);
}

/// Draws the overhead over time against the target, and the sensors of the budget.
fn budget(frame: &mut Frame<'_>, area: Rect, model: &Model, paint: &Paint) {
    let Some(budget) = &model.snapshot.budget else {
        return;
    };
    let [course, rows] = Layout::vertical([Constraint::Length(2), Constraint::Min(2)]).areas(area);
    let overheads = budget.course.iter();
    let overheads: Vec<_> = overheads.map(|point| Some(point.overhead)).collect();
    let worst = budget.course.iter().map(|point| point.worst_window);
    let window = Nanos::from_ns(budget.window_ns);
    let worst = maybe(worst.max_by(f64::total_cmp), percent);
    let label = "over time ";
    // A middle bar is the target.
    let highest = 2.0 * budget.target;
    let scale = format!(" 0 .. {}, target in the middle", percent(highest));
    let room = usize::from(course.width).saturating_sub(label.len() + scale.len());
    let lines = vec![
        Line::raw(format!(
            "target {}  observed {} ± {}  at most {worst} in {window} of CPU time",
            percent(budget.target),
            percent(budget.observed),
            percent(budget.observed_error),
        )),
        Line::from(vec![
            Span::raw(label),
            Span::styled(
                bars_between(&overheads, room.min(overheads.len()), 0.0, highest),
                paint.colour(Color::Cyan),
            ),
            Span::styled(scale, paint.faint()),
        ]),
    ];
    frame.render_widget(Paragraph::new(lines), course);
    let names: Vec<String> = budget
        .sensors
        .iter()
        .map(|it| printable(&it.name))
        .collect();
    let width = width_of(names.iter().map(String::as_str), 8, 40);
    let columns = [
        Column::new("sensor", width, 0, false, false),
        Column::new("on", 8, 0, true, false),
        Column::new("cost", 9, 0, true, true),
        Column::new("price", 18, 1, true, false),
        Column::new("written", 11, 2, true, false),
        Column::new("skipped", 11, 3, true, false),
    ];
    let cells = names.into_iter().zip(&budget.sensors).map(|(name, it)| {
        let skipped = it
            .skipped
            .map_or_else(|| "?".to_string(), |all| all.to_string());
        [
            name,
            maybe(it.share_on, |share| format!("{:.1} %", share * 100.0)),
            time(it.cost_ns as u64),
            format!("{:.1} ± {:.1} ns", it.price_ns, it.price_error_ns),
            it.written.to_string(),
            skipped,
        ]
        .map(Span::raw)
        .to_vec()
    });
    table(frame, rows, &columns, cells.collect(), None, model, paint);
}

const HELP: &str = "\
q, Ctrl-C  quit                 Tab, 1..5  page
/          filter by name       Esc        show all again
s, S       sort by next column  r          reverse the order
p, Space   stand still          ?          this help
Up, Down   select a row         Left/Right course of rate or field
o          switch the selected sensor on or off

rate       elements per second, missed ones included
of decl    share of the declared rate; ! is below 90 %,
           or elements came earlier than declared
missed     written, and not evaluated
p50, p99   distances of neighbouring elements";

fn help(frame: &mut Frame<'_>, area: Rect, paint: &Paint) {
    let lines = u16::try_from(HELP.lines().count()).unwrap_or(0);
    let width = width_of(HELP.lines(), 0, 100) + 4;
    let (width, height) = (width.min(area.width), (lines + 2).min(area.height));
    let window = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, window);
    let block = Block::bordered().title(" help: any key closes it ");
    let block = block.border_style(paint.colour(Color::Cyan));
    frame.render_widget(Paragraph::new(HELP).block(block), window);
}
