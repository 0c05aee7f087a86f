// SPDX-License-Identifier: MIT OR Apache-2.0
//! From requests to running samplers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use overhear_event::{Origin, Rate, StreamDescriptor, StreamId, StreamIdRange};
use overhear_sampling::sources::{SourceFinder, SourceNameError};
use overhear_sampling::{
    sample_ring, PeriodicSampler, PeriodicSamplers, PeriodicSource, RingSize, SampleForm,
    SampleSubject,
};

use super::{SamplingPolicy, SamplingRequest};
use crate::error::{ErrorKind, SessionError, Setting};

/// The processes that samplers read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subjects {
    /// Processes, each with all of its threads.
    pub(crate) pids: Vec<u32>,
}

/// The samplers of a session that the monitor reads as a source.
#[derive(Debug, Default)]
pub(crate) struct Samplers {
    /// The periodic samplers; `None` if there are none.
    pub(crate) periodic: Option<Rc<RefCell<PeriodicSource>>>,
    names: Vec<String>,
}

/// The part of a sampler that becomes one stream.
struct Part<'a> {
    request: &'a SamplingRequest,
    names: Vec<&'a str>,
    pid: Option<u32>,
    instance: String,
}

impl Samplers {
    /// Opens all sources, and allocates and locks all buffers. `free` are the numbers of streams
    /// that no other source uses.
    ///
    /// # Errors
    /// [`SessionError`] if a quantity cannot be sampled, or the periods do not fit together.
    pub(crate) fn prepare(
        requests: &[SamplingRequest],
        subjects: &Subjects,
        free: &mut StreamIdRange,
    ) -> Result<Self, SessionError> {
        let mut samplers = Vec::new();
        let mut sources = Vec::new();
        for part in requests
            .iter()
            .map(|it| parts(it, subjects))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
        {
            let (sampler, source) = part.prepare(free)?;
            samplers.push(sampler);
            sources.push(source);
        }
        if samplers.is_empty() {
            return Ok(Self::default());
        }
        let thread =
            PeriodicSamplers::prepare(samplers).map_err(|error| usage(&error.to_string()))?;
        let source = PeriodicSource::new(sources, thread);
        Ok(Self {
            periodic: Some(Rc::new(RefCell::new(source))),
            names: requests
                .iter()
                .map(|request| request.name.clone())
                .collect(),
        })
    }

    /// Begins the first period of all.
    pub(crate) fn release(&self) {
        if let Some(source) = &self.periodic {
            source.borrow().release();
        }
    }

    /// The names of the samplers.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
}

fn usage(message: &str) -> SessionError {
    SessionError::new(ErrorKind::Usage, message).about(Setting::Sampling)
}

/// The streams of a periodic sampler: one for each process, and one for the machine if there are
/// several processes.
fn parts<'a>(
    request: &'a SamplingRequest,
    subjects: &Subjects,
) -> Result<Vec<Part<'a>>, SessionError> {
    if !matches!(request.policy, SamplingPolicy::Periodic { .. }) {
        return Ok(Vec::new());
    }
    let names = || request.sample.iter().map(String::as_str);
    let part = |names: Vec<&'a str>, pid, instance| Part {
        request,
        names,
        pid,
        instance,
    };
    let of_process: Vec<&str> = names()
        .filter(|name| SourceFinder::is_of_process(name))
        .collect();
    let of_machine: Vec<&str> = names()
        .filter(|name| !SourceFinder::is_of_process(name))
        .collect();
    match (subjects.pids.as_slice(), of_process.first()) {
        ([], Some(name)) => Err(usage(
            &SourceNameError::NoProcess((*name).to_owned()).to_string(),
        )),
        (_, None) => Ok(vec![part(of_machine, None, String::new())]),
        (&[pid], _) => Ok(vec![part(names().collect(), Some(pid), String::new())]),
        (several, _) => {
            let each = several.iter();
            let each = each.map(|pid| part(of_process.clone(), Some(*pid), pid.to_string()));
            let machine = (!of_machine.is_empty())
                .then(|| part(of_machine.clone(), None, "machine".to_owned()));
            Ok(each.chain(machine).collect())
        }
    }
}

impl Part<'_> {
    fn prepare(
        &self,
        free: &mut StreamIdRange,
    ) -> Result<(PeriodicSampler, overhear_sampling::SampleSource), SessionError> {
        let Some(period) = self.request.policy.period() else {
            return Err(usage("a periodic sampler has no period"));
        };
        let finder = SourceFinder::default();
        let finder = match self.pid {
            Some(pid) => finder.of_process(pid),
            None => finder,
        };
        let reading = finder.find(&self.names).map_err(|error| {
            let kind = match error.is_of_machine() {
                true => ErrorKind::Unavailable,
                false => ErrorKind::Usage,
            };
            SessionError::new(kind, error.to_string()).about(Setting::Sampling)
        })?;
        let form = SampleForm::new(reading.quantities().iter());
        let form = form.map_err(|error| usage(&error.to_string()))?;
        let size = RingSize::of(form.payload_bytes(), period);
        let size = size.map_err(|error| usage(&error.to_string()))?;
        let ids = free
            .take(1)
            .ok_or_else(|| usage("there are too many samplers"))?;
        let stream = self.stream(ids.first(), &form, size);
        let ring = sample_ring(Arc::new(stream), size);
        let (writer, source) = ring.map_err(|error| usage(&error.to_string()))?;
        let sampler = PeriodicSampler {
            period,
            reading,
            form,
            subject: SampleSubject {
                tid: 0,
                pid: self.pid.unwrap_or(0),
            },
            writer,
        };
        Ok((sampler, source))
    }

    fn stream(&self, id: StreamId, form: &SampleForm, size: RingSize) -> StreamDescriptor {
        let name = self.request.name.clone();
        let period = self.request.policy.period();
        StreamDescriptor {
            instance: self.instance.clone(),
            rate: period.and_then(|period| {
                let none = overhear_event::Nanos::ZERO;
                Rate::new(period, none, none).ok()
            }),
            capacity: size.samples(),
            ..StreamDescriptor::new(id, Origin::Sampler, name, form.schema())
        }
    }
}
