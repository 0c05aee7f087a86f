// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's deadline scheduler: what is reserved, and whether it would take one more.
//!
//! The only unsafe code of this crate: two system calls that libc has no functions for.

use std::fs;
use std::io;

use overhear_admission::DeadlineReservation;
use overhear_event::Nanos;

/// What the kernel says to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelVerdict {
    /// It takes it.
    Accepted,
    /// All reservations together would exceed what it gives away (`EBUSY`).
    Busy,
    /// The caller may not reserve CPU time (`EPERM`): that needs `CAP_SYS_NICE` and threads that may
    /// run on every CPU of their root domain.
    NotPermitted,
    /// It does not take these numbers (`EINVAL`), or has no deadline scheduler at all.
    Unacceptable,
}

/// `struct sched_attr`, version 0 (`include/uapi/linux/sched/types.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    // Nanoseconds.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

const SCHED_DEADLINE: u32 = 6;
/// Children begin with the default policy: without it the kernel forbids them.
const RESET_ON_FORK: u64 = 1;

/// Asks the kernel by reserving in a thread that ends at once, which gives the reservation back.
/// The answer holds for this moment: somebody else may reserve meanwhile.
#[must_use]
pub fn ask_kernel(reservation: DeadlineReservation) -> KernelVerdict {
    let asking = std::thread::Builder::new()
        .name("oh-asks".to_string())
        .spawn(move || reserve(reservation));
    let answer = match asking {
        Ok(thread) => thread.join().unwrap_or(Err(libc::EINVAL)),
        Err(error) => Err(error.raw_os_error().unwrap_or(libc::EAGAIN)),
    };
    match answer {
        Ok(()) => KernelVerdict::Accepted,
        Err(libc::EBUSY) => KernelVerdict::Busy,
        Err(libc::EPERM) => KernelVerdict::NotPermitted,
        Err(_) => KernelVerdict::Unacceptable,
    }
}

/// Puts the calling thread under the deadline scheduler.
fn reserve(reservation: DeadlineReservation) -> Result<(), i32> {
    let attributes = Attributes {
        size: 48,
        policy: SCHED_DEADLINE,
        flags: RESET_ON_FORK,
        runtime: reservation.runtime.as_ns(),
        deadline: reservation.deadline.as_ns(),
        period: reservation.period.as_ns(),
        ..Attributes::default()
    };
    // SAFETY: the kernel reads 48 bytes, which the assertion above holds the type to, and changes
    // nothing but the policy of this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL))
    }
}

/// The reservations of all threads that are visible here. Threads of other PID namespaces are not.
#[must_use]
pub fn present_reservations() -> Vec<DeadlineReservation> {
    let numbers = |folder: &str| -> Vec<u32> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    };
    let mut present = Vec::new();
    for pid in numbers("/proc") {
        let threads = numbers(&format!("/proc/{pid}/task"));
        present.extend(threads.into_iter().filter_map(reservation_of));
    }
    present
}

/// What this thread has reserved; `None` if it has ended or has another policy.
fn reservation_of(tid: u32) -> Option<DeadlineReservation> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most the 48 bytes that it is told there are.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            tid,
            &raw mut attributes,
            48_u32,
            0_u32,
        )
    };
    (result == 0 && attributes.policy == SCHED_DEADLINE).then(|| DeadlineReservation {
        runtime: Nanos::from_ns(attributes.runtime),
        deadline: Nanos::from_ns(attributes.deadline),
        period: Nanos::from_ns(attributes.period),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use overhear_admission::DeadlineReservation;
    use overhear_event::Nanos;

    use super::{ask_kernel, present_reservations, reserve, KernelVerdict};

    fn reservation(runtime_us: u64, period_us: u64) -> DeadlineReservation {
        DeadlineReservation {
            runtime: Nanos::from_us(runtime_us),
            deadline: Nanos::from_us(period_us),
            period: Nanos::from_us(period_us),
        }
    }

    #[test]
    fn the_kernel_is_asked_and_its_answer_told() {
        let small = reservation(100, 100_000);
        match ask_kernel(small) {
            KernelVerdict::NotPermitted => {
                println!("skipped: reserving CPU time needs CAP_SYS_NICE");
                return;
            }
            verdict => assert_eq!(verdict, KernelVerdict::Accepted),
        }
        // More than a CPU, and a runtime above the deadline.
        assert_eq!(ask_kernel(reservation(2, 1)), KernelVerdict::Unacceptable);
        // A thread that keeps a reservation is seen by others, and gone with its end.
        let odd = reservation(123, 98_765);
        let (reserved, told) = channel();
        let (release, released) = channel::<()>();
        let thread = std::thread::spawn(move || {
            reserved.send(reserve(odd)).unwrap();
            let _ = released.recv();
        });
        assert_eq!(told.recv().unwrap(), Ok(()));
        assert!(present_reservations().contains(&odd));
        drop(release);
        thread.join().unwrap();
        assert!(!present_reservations().contains(&odd));
    }
}
