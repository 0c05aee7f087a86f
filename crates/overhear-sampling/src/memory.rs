// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of samples by the equations of [EPOS, section V-A], to compare with that of
//! [`RingSize`](crate::RingSize).
//!
//! There, a snapshot is one value with a stamp of its own. Here, a sample has one stamp for all of
//! its values, and says to whom it belongs.

/// |Snapshot|: a value and its stamp.
pub const SNAPSHOT_BYTES: u64 = 16;
/// |Data|: a value.
pub const DATA_BYTES: u64 = 8;
/// Bytes of a sample in a ring besides its values: stamp, position, and the header.
pub const SAMPLE_OVERHEAD_BYTES: u64 = 8 + 8 + 24;

/// Equation (1): `M_m = Theta_s(m) * |Snapshot| * C` bytes, for this number of samples and of
/// clerks (quantities).
#[must_use]
pub const fn snapshot_memory(samples: u64, clerks: u64) -> u64 {
    samples * SNAPSHOT_BYTES * clerks
}

/// Equation (2): that of equation (1), and `|Data| * C * N` bytes for the accumulators of this
/// number of tasks.
#[must_use]
pub const fn job_memory(samples: u64, clerks: u64, tasks: u64) -> u64 {
    snapshot_memory(samples, clerks) + DATA_BYTES * clerks * tasks
}

/// Bytes of samples in a ring: one stamp, one position and one header for all quantities.
#[must_use]
pub const fn sample_memory(samples: u64, quantities: u64) -> u64 {
    samples * (SAMPLE_OVERHEAD_BYTES + DATA_BYTES * quantities)
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{job_memory, sample_memory, snapshot_memory};
    use crate::{Quantity, QuantityKind, RingSize, SampleForm};

    /// Table II of the paper: 7 clerks, 100 Hz for 30 s on three CPUs; 60 jobs of each of 6 tasks.
    #[test]
    fn equations_give_the_papers_table() {
        let kbytes = |bytes: u64| (bytes as f64 / 102.4).round() / 10.0;
        assert_eq!(kbytes(snapshot_memory(9000, 7)), 984.4);
        assert_eq!(kbytes(job_memory(360, 7, 6)), 39.7);
    }

    #[test]
    fn rings_have_the_stated_memory_and_less_than_the_paper() {
        for count in 1..=20_u64 {
            let name = |number| Quantity::new(format!("q{number}"), "", QuantityKind::Count);
            let quantities: Vec<Quantity> = (0..count).map(name).collect();
            let form = SampleForm::new(quantities.iter()).unwrap();
            let size = RingSize::of(form.payload_bytes(), Nanos::from_ms(10), 1).unwrap();
            let stated = sample_memory(size.samples(), count);
            // The header of the ring is one page.
            assert!((stated..=stated + 4096).contains(&size.bytes()), "{count}");
            // One stamp instead of one per value pays from five values on.
            let of_paper = snapshot_memory(size.samples(), count);
            assert_eq!(
                stated <= of_paper,
                count >= 5,
                "{count}: {stated} {of_paper}"
            );
        }
    }
}
