// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[task]]`: periodic tasks, for response times.

use std::path::Path;

use overhear_metrics::response::TaskModel;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{reject_unknown_entries, Length};
use crate::error::{ErrorKind, SessionError};

/// `[[task]]`: a task that is released once per period; see docs/response-times.md. Overheads that
/// are not given are measured if a recording has a metric for them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskConfig {
    /// Its name.
    pub name: String,
    /// The short name of its thread in a recording; its name by default. Empty if it is no thread
    /// and cannot be observed, for example an interrupt.
    #[serde(default)]
    pub thread: Option<String>,
    /// Its priority. A larger number is more urgent, as under `SCHED_FIFO`.
    pub priority: u32,
    /// T, the distance of two releases.
    pub period: Length,
    /// The relative deadline of a job; the period by default.
    #[serde(default)]
    pub deadline: Option<Length>,
    /// Worst-case execution time of its own code.
    pub wcet: Length,
    /// The longest critical section of a task of lower priority for which it can wait; by default
    /// the longest one in a recording of the kernel sensor lock, or 0.
    #[serde(default)]
    pub blocking: Option<Length>,
    /// System time of a job.
    #[serde(default)]
    pub job_system_time: Option<Length>,
    /// The longest time for which system code on its behalf can block tasks of higher priority.
    #[serde(default)]
    pub system_blocking: Option<Length>,
    /// The time that its wake-up from a delay takes.
    #[serde(default)]
    pub delay_until_wakeup: Option<Length>,
}

impl TaskConfig {
    /// The short name of its thread. The kernel keeps 15 bytes of a name.
    #[must_use]
    pub fn thread(&self) -> &str {
        let name = self.thread.as_deref().unwrap_or(&self.name);
        let mut end = name.len().min(15);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        &name[..end]
    }

    /// Whether it is a thread, which can be observed.
    #[must_use]
    pub fn is_thread(&self) -> bool {
        self.thread.as_deref() != Some("")
    }

    /// The task for the analysis of response times.
    #[must_use]
    pub fn model(&self) -> TaskModel {
        let length = |given: Option<Length>| given.map(|length| length.0);
        TaskModel {
            name: self.name.clone(),
            thread: self.is_thread().then(|| self.thread().to_owned()),
            priority: self.priority,
            period: self.period.0,
            deadline: self.deadline.map_or(self.period.0, |deadline| deadline.0),
            user_wcet: self.wcet.0,
            user_blocking: length(self.blocking),
            job_system_time: length(self.job_system_time),
            system_blocking: length(self.system_blocking),
            delay_until_wakeup: length(self.delay_until_wakeup),
        }
    }
}

/// The tasks of the file `path`, at least one.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the line.
pub fn read(path: &Path) -> Result<Vec<TaskConfig>, SessionError> {
    let text = super::text_of(path)?;
    parse(&text).map_err(|message| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    })
}

/// The tasks of a file's text, at least one.
///
/// # Errors
/// A message that names the line.
pub fn parse(text: &str) -> Result<Vec<TaskConfig>, String> {
    /// The entries for tasks.
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default, rename = "task")]
        tasks: Vec<TaskConfig>,
    }

    reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    if entries.tasks.is_empty() {
        return Err("there is no [[task]]; describe at least one".to_owned());
    }
    for (index, task) in entries.tasks.iter().enumerate() {
        let same = |other: &TaskConfig| {
            let same_thread = task.is_thread() && other.thread() == task.thread();
            other.name == task.name || same_thread
        };
        if entries.tasks[..index].iter().any(same) {
            return Err(format!(
                "task `{}` has the name or the thread of another one; rename one of them",
                task.name
            ));
        }
    }
    Ok(entries.tasks)
}
