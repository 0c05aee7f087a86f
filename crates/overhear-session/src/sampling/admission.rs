// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and overhead of samplers, stated before they run.

use std::sync::Arc;
use std::time::Instant;

use overhear_event::{Nanos, Origin, SamplePoint, StreamDescriptor, StreamIdRange, Timestamp};
use overhear_sampling::policy::Timer;
use overhear_sampling::sources::{NewestValue, SourceFinder, SENSOR};
use overhear_sampling::{sample_ring, RingSize, SampleForm, SampleSubject};
use serde::Serialize;

use super::start::{source_error, trusted_names, usage};
use super::SamplingRequest;
use crate::error::SessionError;

/// Samples that are taken to measure their time.
const MEASURED_SAMPLES: usize = 65;

/// What a sampler will take.
#[derive(Clone, Debug, Serialize)]
pub struct SamplerAdmission {
    /// Its name.
    pub name: String,
    /// Its quantities, as the file names them.
    pub sample: Vec<String>,
    /// Its period; null without one.
    pub period_ns: Option<u64>,
    /// Its point; null without one.
    pub point: Option<String>,
    /// Bytes of a sample, with its stamp.
    pub sample_bytes: Option<u64>,
    /// Samples that its buffer holds.
    pub buffer_samples: Option<u64>,
    /// Memory of the buffer, allocated and locked before the start; null if the kernel has it.
    pub memory_bytes: Option<u64>,
    /// Median time of a sample, measured now; null if the kernel takes it.
    pub sample_ns: Option<u64>,
    /// Share of a CPU that its samples take, without wake-ups.
    pub overhead: Option<f64>,
}

/// The memory and the overhead of samplers on this machine. Their sources are opened and read, for
/// this process in place of the program.
///
/// # Errors
/// [`SessionError`] if a quantity cannot be sampled, or the periods do not fit together.
pub(crate) fn admit(requests: &[SamplingRequest]) -> Result<Vec<SamplerAdmission>, SessionError> {
    let periodic = requests
        .iter()
        .filter(|request| request.policy.point().is_none());
    let periods: Vec<Nanos> = periodic.filter_map(|it| it.policy.period()).collect();
    Timer::of(&periods).map_err(|error| usage(&error.to_string()))?;
    requests.iter().map(admit_one).collect()
}

fn admit_one(request: &SamplingRequest) -> Result<SamplerAdmission, SessionError> {
    let period = request.policy.period();
    let mut admission = SamplerAdmission {
        name: request.name.clone(),
        sample: request.sample.clone(),
        period_ns: period.map(Nanos::as_ns),
        point: request.policy.point().map(ToString::to_string),
        sample_bytes: None,
        buffer_samples: None,
        memory_bytes: None,
        sample_ns: None,
        overhead: None,
    };
    let (Some(period), None) = (period, request.policy.point()) else {
        return Ok(admission);
    };
    let finder = SourceFinder::default().of_process(std::process::id());
    // Sensors are there when the program runs.
    let sensors = request
        .sample
        .iter()
        .filter(|name| name.starts_with(SENSOR));
    let finder = sensors.fold(finder, |finder, name| {
        finder.newest(name, NewestValue::default())
    });
    let mut reading = finder
        .find(&trusted_names(&request.sample)?)
        .map_err(source_error)?;
    let form = SampleForm::new(reading.quantities().iter());
    let mut form = form.map_err(|error| usage(&error.to_string()))?;
    let size = RingSize::of(form.payload_bytes(), period, 1);
    let size = size.map_err(|error| usage(&error.to_string()))?;
    let id = StreamIdRange::LOCAL.first();
    let stream = StreamDescriptor::new(id, Origin::Sampler, "trial", form.schema());
    let ring = sample_ring(Arc::new(stream), size);
    let (mut writer, _source) = ring.map_err(|error| usage(&error.to_string()))?;
    let mut values = vec![0; form.quantities()];
    let mut times = Vec::with_capacity(MEASURED_SAMPLES);
    for _ in 0..MEASURED_SAMPLES {
        let begun = Instant::now();
        if reading.read(&mut values).is_ok() {
            let point = (SamplePoint::Period, 0);
            let sample = form.sample(SampleSubject::default(), point, &values, Timestamp::ZERO);
            writer.write(sample, Timestamp::ZERO);
        }
        times.push(begun.elapsed().as_nanos());
    }
    times.sort_unstable();
    let median = u64::try_from(times[MEASURED_SAMPLES / 2]).unwrap_or(u64::MAX);
    admission.sample_bytes = Some(8 + form.payload_bytes() as u64);
    admission.buffer_samples = Some(size.samples());
    admission.memory_bytes = Some(size.bytes());
    admission.sample_ns = Some(median);
    admission.overhead = Some(median as f64 / period.as_ns() as f64);
    Ok(admission)
}

#[cfg(test)]
mod tests {
    use super::{admit, SamplingRequest};

    fn request(every: Option<&str>, per: Option<&str>) -> SamplingRequest {
        SamplingRequest::parse(&["cpu-time", "resident"], every, per, None).unwrap()
    }

    #[test]
    fn memory_and_overhead_are_stated() {
        let admitted = admit(&[request(Some("1ms"), None)]).unwrap().remove(0);
        // 2 s, rounded up to a power of two, of stamp, position, header and two quantities.
        assert_eq!(admitted.buffer_samples, Some(2048));
        assert_eq!(admitted.sample_bytes, Some(8 + 24 + 16));
        let bytes = admitted.memory_bytes.unwrap();
        assert!((2048 * 56..2048 * 56 + 8192).contains(&bytes), "{bytes}");
        let (time, overhead) = (admitted.sample_ns.unwrap(), admitted.overhead.unwrap());
        assert!(
            time > 0 && (overhead * 1e6 - time as f64).abs() < 1.0,
            "{time} {overhead}"
        );
    }

    #[test]
    fn samples_of_the_kernel_have_no_memory_here() {
        let admitted = admit(&[request(Some("1ms"), Some("job=yield"))]).unwrap();
        assert_eq!(admitted[0].memory_bytes, None);
        assert_eq!(admitted[0].point.as_deref(), Some("job=yield"));
    }

    #[test]
    fn dissonant_periods_are_refused() {
        let other = request(Some("1009us"), None).named("other");
        let error = admit(&[request(Some("997us"), None), other]).unwrap_err();
        assert!(
            error.message.contains("would need 1000000 ticks"),
            "{error}"
        );
    }
}
