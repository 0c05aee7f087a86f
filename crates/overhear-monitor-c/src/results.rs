// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `include/overhear/metric.h` that hand out results: measurements of a recording
//! or of a monitor, and the gaps in them.

use std::ffi::{c_char, c_int};
use std::ptr;

use overhear_event::{EventSet, Nanos};
use overhear_ffi::{release, text, FfiError};
use overhear_metrics::automaton::{
    CMeasurement, CMeasurementGap, MeasurementList, Metric, Metrics, Results,
};
use overhear_trace::{recorded_costs, TraceReader};

use crate::metric::RawMetric;
use crate::LIBRARY;

/// `oh_results_get`.
///
/// # Safety
/// `out` is NULL or writable; `metric` is NULL or came from one of the functions of metric.rs;
/// `directory` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_get(
    out: *mut *mut MeasurementList,
    metric: *const RawMetric,
    directory: *const c_char,
    element_cost_ns: u64,
) -> c_int {
    LIBRARY.guard("oh_results_get", || {
        // SAFETY: by contract.
        let given = unsafe { (metric.as_ref(), text(directory)) };
        let (Some(metric), Some(directory), false) = (given.0, given.1, out.is_null()) else {
            return Err(FfiError::invalid("give `out`, a metric and a directory"));
        };
        // SAFETY: writable by contract.
        unsafe { out.write(ptr::null_mut()) };
        let results = measure(metric.metric(), &directory, element_cost_ns)?;
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(results))) };
        Ok(0)
    })
}

/// `OH_ELEMENT_COST_CALIBRATED`.
pub(crate) const CALIBRATED: u64 = u64::MAX;

/// What the metric measures in the recording in `directory`.
fn measure(metric: &Metric, directory: &str, cost_ns: u64) -> Result<MeasurementList, FfiError> {
    let unreadable = |error| FfiError::new(-libc::ENOENT, error);
    let lacking = |message: String| FfiError::new(-libc::ENODATA, message);
    let reader = TraceReader::open(directory).map_err(unreadable)?;
    let recorded: EventSet = reader.streams().map(|stream| stream.event()).collect();
    let mut sources = metric.sources().iter();
    if let Some(event) = sources.find(|event| !recorded.contains(event)) {
        return Err(lacking(format!(
            "the recording has no {event}, which {} requires",
            metric.name()
        )));
    }
    let costs = match cost_ns {
        CALIBRATED => recorded_costs(&reader).map_err(unreadable)?.ok_or_else(|| {
            lacking("the recording has no calibration; run `overhear calibrate` before the next one, or give a length".to_owned())
        })?,
        length => Nanos::from_ns(length).into(),
    };
    let mut engine = Metrics::new(Results::default().minus_costs(costs));
    engine.add(metric.clone());
    reader.replay(&mut [&mut engine]);
    engine.finish();
    Ok(MeasurementList::take(&mut engine, 0))
}

/// `oh_results_free`.
///
/// # Safety
/// `results` is NULL or came from `oh_results_get`, and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_free(results: *mut MeasurementList) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(results) };
}

/// `oh_results_count`.
///
/// # Safety
/// `results` is NULL or came from `oh_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_count(results: *const MeasurementList) -> usize {
    // SAFETY: by contract.
    let results = unsafe { results.as_ref() };
    results.map_or(0, MeasurementList::count)
}

/// Copies an item into `out`. Returns 0, or `-EINVAL` if there is no such item or no `out`.
fn copy_out<T>(found: Option<T>, out: Option<&mut T>) -> c_int {
    match (found, out) {
        (Some(found), Some(out)) => {
            *out = found;
            0
        }
        _ => -libc::EINVAL,
    }
}

/// `oh_results_at`.
///
/// # Safety
/// `results` is NULL or came from `oh_results_get`; `out` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_at(
    results: *const MeasurementList,
    number: usize,
    out: *mut CMeasurement,
) -> c_int {
    // SAFETY: by contract.
    let (results, out) = unsafe { (results.as_ref(), out.as_mut()) };
    let found = results.and_then(|results| results.measurement(number));
    copy_out(found, out)
}

/// `oh_results_gaps`.
///
/// # Safety
/// `results` is NULL or came from `oh_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_gaps(results: *const MeasurementList) -> usize {
    // SAFETY: by contract.
    let results = unsafe { results.as_ref() };
    results.map_or(0, MeasurementList::gaps)
}

/// `oh_results_gap_at`.
///
/// # Safety
/// `results` is NULL or came from `oh_results_get`; `out` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_gap_at(
    results: *const MeasurementList,
    number: usize,
    out: *mut CMeasurementGap,
) -> c_int {
    // SAFETY: by contract.
    let (results, out) = unsafe { (results.as_ref(), out.as_mut()) };
    let found = results.and_then(|results| results.gap(number));
    copy_out(found, out)
}

/// `oh_results_missed`.
///
/// # Safety
/// `results` is NULL or came from `oh_results_get`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_results_missed(results: *const MeasurementList) -> u64 {
    // SAFETY: by contract.
    let results = unsafe { results.as_ref() };
    results.map_or(0, MeasurementList::missed)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::ptr;

    use overhear_event::{
        ElementView, FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp,
        TypeSchema,
    };
    use overhear_trace::{TraceIdentity, TraceWriter};

    use super::super::metric::{oh_metric_free, oh_metric_parse};
    use super::{
        oh_results_at, oh_results_count, oh_results_free, oh_results_gap_at, oh_results_gaps,
        oh_results_get, oh_results_missed, CMeasurement, CMeasurementGap, CALIBRATED,
    };

    const METRIC: &str =
        "metric mine\nevent a = user:a\nevent b = user:a [n == 2]\nby b.n\nstate 0 out\n\
        state 1 begin\nstate 2 in\nstate 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: b, i\n\
        3 -> 0: lambda\n";

    /// One measurement of 50 ns, another one that something is missing of, and a third one that
    /// does not end.
    fn record(dir: &std::path::Path, calibration: Option<serde_json::Value>) {
        let schema = TypeSchema::builder("t").field("n", FieldKind::U32, "");
        let stream = StreamDescriptor {
            capacity: 8,
            ..StreamDescriptor::new(
                StreamId::from_raw(1),
                Origin::program(7, "p"),
                "a",
                schema.build().unwrap(),
            )
        };
        let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
        let at = Timestamp::from_monotonic_ns;
        let elements = [
            (0, 10, 1_u32),
            (1, 15, 3),
            (2, 60, 2),
            (3, 80, 1),
            (9, 100, 2),
            (10, 110, 1),
        ];
        for (sequence, ns, number) in elements {
            if sequence == 9 {
                let missed = Gap {
                    stream: stream.id,
                    first: 4,
                    missed: 5,
                    from: at(80),
                    to: at(100),
                    cause: GapCause::Full,
                };
                writer.gap(&stream, &missed).unwrap();
            }
            let element = ElementView {
                stream: &stream,
                sequence,
                time: at(ns),
                payload: &number.to_ne_bytes(),
            };
            writer.element(&element).unwrap();
        }
        if let Some(calibration) = calibration {
            writer.attach_document("calibration", &calibration).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn calibrated_costs_are_subtracted_from_lengths() {
        let text = CString::new(METRIC).unwrap();
        let price =
            serde_json::json!({"programs": [{"kind": "simple", "write": {"mean_ns": 8.9}}]});
        for (calibration, status) in [(None, -libc::ENODATA), (Some(price), 0)] {
            let folder = tempfile::tempdir().unwrap();
            record(folder.path(), calibration);
            let directory = CString::new(folder.path().to_str().unwrap()).unwrap();
            let (mut metric, mut results) = (ptr::null_mut(), ptr::null_mut());
            let mut found = std::mem::MaybeUninit::<CMeasurement>::zeroed();
            // SAFETY: the places are writable, the strings live, what is freed is not used any
            // more, and a measurement may be zero.
            let found = unsafe {
                assert_eq!(oh_metric_parse(&raw mut metric, text.as_ptr()), 0);
                let got = oh_results_get(&raw mut results, metric, directory.as_ptr(), CALIBRATED);
                assert_eq!(got, status);
                let _ = oh_results_at(results, 0, found.as_mut_ptr());
                oh_metric_free(metric);
                oh_results_free(results);
                found.assume_init()
            };
            assert_eq!(found.length_ns, if status == 0 { 50 - 9 } else { 0 });
        }
    }

    #[test]
    fn results_of_a_recording_have_all_values() {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), None);
        let directory = CString::new(folder.path().to_str().unwrap()).unwrap();
        let text = CString::new(METRIC).unwrap();
        let (mut metric, mut results) = (ptr::null_mut(), ptr::null_mut());
        let mut found = std::mem::MaybeUninit::<CMeasurement>::uninit();
        let mut gap = std::mem::MaybeUninit::<CMeasurementGap>::uninit();
        // SAFETY: the places are writable, the strings live, and what is freed is not used any
        // more.
        let (found, gap) = unsafe {
            assert_eq!(oh_metric_parse(&raw mut metric, text.as_ptr()), 0);
            let got = oh_results_get(&raw mut results, metric, directory.as_ptr(), 3);
            assert_eq!(got, 0);
            oh_metric_free(metric);
            assert_eq!(oh_results_count(results), 2);
            assert_eq!(oh_results_missed(results), 5);
            assert_eq!(oh_results_at(results, 1, found.as_mut_ptr()), 0);
            assert_eq!(found.assume_init_ref().missed, 5);
            assert_eq!(oh_results_at(results, 2, found.as_mut_ptr()), -libc::EINVAL);
            assert_eq!(oh_results_at(results, 0, found.as_mut_ptr()), 0);
            assert_eq!(oh_results_gaps(results), 1);
            assert_eq!(oh_results_gap_at(results, 0, gap.as_mut_ptr()), 0);
            assert_eq!(
                oh_results_gap_at(results, 1, gap.as_mut_ptr()),
                -libc::EINVAL
            );
            oh_results_free(results);
            (found.assume_init(), gap.assume_init())
        };
        assert_eq!(
            (gap.measurement, gap.stream, gap.first, gap.missed),
            (1, 1, 4, 5)
        );
        // OH_GAP_FULL.
        assert_eq!((gap.from_ns, gap.to_ns, gap.cause), (80, 100, 4));
        // One element lies inside; its price is subtracted.
        assert_eq!((found.task, found.begin_ns, found.end_ns), (7, 10, 60));
        assert_eq!((found.length_ns, found.intermediate_events), (47, 1));
        assert_eq!((found.own_events, found.missed), (1, 0));
        assert_eq!((found.has_key, found.key), (1, 2));
    }

    #[test]
    fn recording_without_required_event_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), None);
        let directory = CString::new(folder.path().to_str().unwrap()).unwrap();
        let text = CString::new(METRIC.replace("user:a", "user:absent")).unwrap();
        let (mut metric, mut results) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as above.
        unsafe {
            assert_eq!(oh_metric_parse(&raw mut metric, text.as_ptr()), 0);
            let got = oh_results_get(&raw mut results, metric, directory.as_ptr(), 0);
            assert_eq!((got, results.is_null()), (-libc::ENODATA, true));
            oh_metric_free(metric);
        }
    }
}
