// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a recording.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use overhear_event::{Analysis, Timestamp};
use overhear_metrics::compensation::Delays;
use overhear_session::calibrate::Calibration;
use overhear_session::documents;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::output;
use overhear_session::recording::Recording;
use overhear_session::replay;
use overhear_session::report::Report;
use overhear_session::session::Outcome;
use overhear_trace::TraceReader;

use crate::heap;
use crate::html::{self, Run};
use crate::picture::{Picture, Piece, Remedy, Room, TimeRange};

/// File name of the page in the folder of a recording.
const PAGE: &str = "report.html";
/// Size of a block of the file system.
const BLOCK: u64 = 4_096;

/// A recording, and the part of it that the page shows.
#[derive(Debug)]
pub struct PageRequest<'a> {
    /// Folder of the recording.
    pub dir: &'a Path,
    /// Report of the recording.
    pub report: &'a Report,
    /// Costs of sensors, which replace those in the recording.
    pub calibration: Option<Calibration>,
    /// The part of the run that the time-line shows.
    pub range: TimeRange,
}

impl<'a> PageRequest<'a> {
    /// All of the recording in `dir`.
    #[must_use]
    pub fn of(dir: &'a Path, report: &'a Report) -> Self {
        Self {
            dir,
            report,
            calibration: None,
            range: TimeRange::default(),
        }
    }
}

/// A page that can be written. Holding one proves that the picture is in memory, within its bounds.
#[derive(Debug)]
pub struct Page<'a> {
    runs: Vec<Pictured<'a>>,
}

/// The picture of a recording, and its report.
#[derive(Debug)]
struct Pictured<'a> {
    request: &'a PageRequest<'a>,
    picture: Picture,
    begin: Timestamp,
}

impl<'a> Page<'a> {
    /// The page of one or two recordings. Two are shown on one scale.
    ///
    /// # Errors
    /// [`SessionError`] if one of the folders has no recording.
    pub fn of(requests: &'a [PageRequest<'a>]) -> Result<Self, SessionError> {
        let room = match requests.len() {
            1 => Room::PAGE,
            _ => Room::PAGE.half(),
        };
        let runs = requests.iter().map(|request| pictured(request, room));
        Ok(Self {
            runs: runs.collect::<Result<_, _>>()?,
        })
    }

    /// Messages about the parts of the recordings that the page leaves out, because they exceed
    /// its bounds.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        let pieces = self.runs.iter().map(Pictured::timeline);
        pieces.flat_map(|piece| piece.left_out()).collect()
    }

    /// Writes the page.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let labels: Vec<String> = self.runs.iter().map(|run| run.label()).collect();
        let timelines: Vec<Piece<'_>> = self.runs.iter().map(Pictured::timeline).collect();
        let runs = self.runs.iter().zip(&timelines).zip(&labels);
        let runs: Vec<_> = runs
            .map(|((run, timeline), label)| Run {
                report: run.request.report,
                timeline,
                program: run
                    .request
                    .report
                    .command
                    .first()
                    .map_or("", String::as_str),
                // A single run needs no name.
                label: if labels.len() > 1 { label } else { "" },
            })
            .collect();
        match runs.as_slice() {
            [] => Ok(()),
            [run, rest @ ..] => html::write(out, run, rest.first()),
        }
    }

    /// Writes the page to a file.
    ///
    /// # Errors
    /// [`SessionError`] if the file cannot be written.
    pub fn write_to(&self, file: &Path) -> Result<(), SessionError> {
        output::write(file, |out| self.write(out))
    }

    /// Checks that the page fits into the recording in `dir`, if its size is limited.
    fn check_room(&self, dir: &Path) -> Result<(), SessionError> {
        let incomplete =
            |error: &dyn Display| SessionError::new(ErrorKind::Incomplete, error.to_string());
        let reader = TraceReader::open(dir).map_err(|error| incomplete(&error))?;
        let free = reader.free_bytes().map_err(|error| incomplete(&error))?;
        let Some(free) = free else {
            return Ok(());
        };
        let mut size = ByteCount(0);
        let written = self.write(&mut size);
        written.map_err(|error| incomplete(&error))?;
        // Whole blocks, and one of the folder.
        let needed = (size.0 / BLOCK + 2) * BLOCK;
        if needed <= free {
            return Ok(());
        }
        Err(SessionError::new(
            ErrorKind::Incomplete,
            format!(
                "the page is not written: it needs {needed} bytes, and the size of the recording leaves {free}; \
                 write it elsewhere: overhear report {} --html FILE",
                dir.display()
            ),
        ))
    }

    /// Writes the page into the folder of the recording, `dir`; returns its file.
    ///
    /// # Errors
    /// [`SessionError`] if it cannot be written, if the folder belongs to another user, or if a
    /// link has the name of the page.
    pub fn write_into(&self, dir: &Path) -> Result<PathBuf, SessionError> {
        output::write_inside(dir, PAGE, |out| self.write(out))?;
        Ok(dir.join(PAGE))
    }
}

impl Pictured<'_> {
    fn label(&self) -> String {
        // Of a trace log, the folder is a temporary one, and the report has the log's name.
        let named = self.request.report.trace.directory.clone();
        named.unwrap_or_else(|| self.request.dir.display().to_string())
    }

    fn timeline(&self) -> Piece<'_> {
        let piece = self.picture.whole(self.begin);
        piece.with_remedy(Remedy::Recording(self.label()))
    }
}

/// Replays a recording into a picture.
fn pictured<'a>(request: &'a PageRequest<'a>, room: Room) -> Result<Pictured<'a>, SessionError> {
    let usage =
        |error: overhear_trace::ReadError| SessionError::new(ErrorKind::Usage, error.to_string());
    let reader = TraceReader::open(request.dir).map_err(usage)?;
    let recording = Recording::read(&reader).map_err(usage)?.unwrap_or_default();
    let times = replay::times(&reader, &recording);
    let calibration = match &request.calibration {
        None => documents::read(&reader, documents::CALIBRATION)?,
        Some(named) => Some(named.clone()),
    };
    let costs = calibration.map(|known: Calibration| {
        let known = known.for_backend(recording.kernel_backend());
        known.costs()
    });
    let range = request.range.of_run(times.begin);
    let mut picture = Picture::new(room, costs.map(Delays::new), range);
    if recording.records_wakeups() {
        picture.expect_wakeups();
    }
    reader.streams().for_each(|stream| picture.announce(stream));
    let count = |id| reader.count(id).map_or(0, |(elements, _)| elements);
    let streams = reader.streams();
    picture.expect(streams.map(|stream| (stream, count(stream.id))));
    let _ = reader.replay(&mut [&mut picture]);
    picture.end(times.ended);
    picture.advance(times.end);
    Ok(Pictured {
        request,
        picture,
        begin: times.begin,
    })
}

/// Counts bytes.
struct ByteCount(u64);

impl Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A written page.
#[derive(Debug)]
pub struct WrittenPage {
    /// The file.
    pub file: PathBuf,
    /// Messages about the parts that it leaves out, because they exceed its bounds.
    pub left_out: Vec<String>,
}

/// Writes the page into the folder of the recording of a session; does nothing if no recording was
/// kept. It takes time and memory of its own: show the report first.
///
/// # Errors
/// [`SessionError`] if the page cannot be written.
pub fn write_page(outcome: &mut Outcome) -> Result<Option<WrittenPage>, SessionError> {
    let Some(out) = outcome.out().map(Path::to_owned) else {
        return Ok(None);
    };
    let metrics = outcome.report.take_long_metrics();
    let written = write_page_to(&out, &outcome.report);
    outcome.report.metrics = outcome.report.metrics.take().or(metrics);
    written.map(Some)
}

fn write_page_to(out: &Path, report: &Report) -> Result<WrittenPage, SessionError> {
    // Memory of the session.
    heap::give_back();
    let requests = [PageRequest::of(out, report)];
    let page = Page::of(&requests)?;
    page.check_room(out)?;
    let file = page.write_into(out)?;
    let left_out = page.left_out();
    Ok(WrittenPage { file, left_out })
}
