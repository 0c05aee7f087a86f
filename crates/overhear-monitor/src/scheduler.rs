// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's real-time schedulers: existing reservations, a test whether another one is
//! accepted, and the calling thread's own reservation.
//!
//! The unsafe code here is two system calls that libc has no functions for.

use std::fs;
use std::io;

use overhear_admission::DeadlineReservation;
use overhear_event::Nanos;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// The kernel's answer to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelVerdict {
    /// It accepts it.
    Accepted,
    /// All reservations together would exceed what it gives away (`EBUSY`).
    Busy,
    /// The caller may not reserve CPU time (`EPERM`): that needs `CAP_SYS_NICE` and threads that
    /// may run on every CPU of their root domain.
    NotPermitted,
    /// It does not accept these numbers (`EINVAL`), or has no deadline scheduler.
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

const SCHED_OTHER: u32 = 0;
const SCHED_FIFO: u32 = 1;
const SCHED_IDLE: u32 = 5;
const SCHED_DEADLINE: u32 = 6;
/// Children begin with the default policy: without it the kernel forbids them.
const RESET_ON_FORK: u64 = 1;
/// `SIGXCPU` for a job that exceeds its runtime.
const DL_OVERRUN: u64 = 4;

/// Tests a reservation by making it in a thread that ends at once. The answer is valid for this
/// moment: another process may reserve meanwhile.
#[must_use]
pub fn query_kernel(reservation: DeadlineReservation) -> KernelVerdict {
    let asking = std::thread::Builder::new()
        .name("oh-query".to_string())
        .spawn(move || reserve(reservation, 0));
    let answer = match asking {
        Ok(thread) => thread.join().unwrap_or(Err(libc::EINVAL)),
        Err(error) => Err(error.raw_os_error().unwrap_or(libc::EAGAIN)),
    };
    match answer {
        Ok(()) => KernelVerdict::Accepted,
        Err(errno) => KernelVerdict::of_refusal(errno),
    }
}

impl KernelVerdict {
    const fn of_refusal(errno: i32) -> Self {
        match errno {
            libc::EBUSY => Self::Busy,
            libc::EPERM => Self::NotPermitted,
            _ => Self::Unacceptable,
        }
    }
}

/// The calling thread runs under the deadline scheduler for as long as this lives, and under the
/// default policy afterwards.
#[derive(Debug)]
pub struct ReservedThread(
    // The reservation belongs to the thread that made it.
    std::marker::PhantomData<*const ()>,
);

impl ReservedThread {
    /// Reserves for the calling thread. With `signals_overruns` the kernel sends the process a
    /// `SIGXCPU` for each job that exceeds its runtime; the caller handles the signal,
    /// which would otherwise end the process.
    ///
    /// # Errors
    /// The kernel's verdict, which is not [`KernelVerdict::Accepted`].
    pub fn reserve(
        reservation: DeadlineReservation,
        signals_overruns: bool,
    ) -> Result<Self, KernelVerdict> {
        let flags = if signals_overruns { DL_OVERRUN } else { 0 };
        reserve(reservation, flags).map_err(KernelVerdict::of_refusal)?;
        Ok(Self(std::marker::PhantomData))
    }
}

impl Drop for ReservedThread {
    fn drop(&mut self) {
        // The release cannot fail.
        let _ = set_policy(&Attributes {
            size: 48,
            policy: SCHED_OTHER,
            ..Attributes::default()
        });
    }
}

/// Puts the calling thread under the deadline scheduler.
fn reserve(reservation: DeadlineReservation, flags: u64) -> Result<(), i32> {
    set_policy(&Attributes {
        size: 48,
        policy: SCHED_DEADLINE,
        flags: RESET_ON_FORK | flags,
        runtime: reservation.runtime.as_ns(),
        deadline: reservation.deadline.as_ns(),
        period: reservation.period.as_ns(),
        ..Attributes::default()
    })
}

/// Gives the calling thread the highest fixed priority: above everything but deadline threads.
pub(crate) fn take_highest_priority() -> Result<(), KernelVerdict> {
    let attributes = Attributes {
        size: 48,
        policy: SCHED_FIFO,
        flags: RESET_ON_FORK,
        priority: 99,
        ..Attributes::default()
    };
    set_policy(&attributes).map_err(KernelVerdict::of_refusal)
}

/// Gives the calling thread the lowest fixed priority, above all ordinary threads. Its children
/// inherit it. For measurements that ordinary work of the machine must not disturb.
///
/// # Errors
/// [`KernelVerdict`] if that is not permitted: the thread stays as it is.
pub fn take_precedence() -> Result<(), KernelVerdict> {
    let attributes = Attributes {
        size: 48,
        policy: SCHED_FIFO,
        priority: 1,
        ..Attributes::default()
    };
    set_policy(&attributes).map_err(KernelVerdict::of_refusal)
}

/// Lets the calling thread run only where no other thread would. Its children inherit that.
///
/// # Errors
/// [`KernelVerdict`] if that is not permitted: the thread stays as it is.
pub(crate) fn run_idle() -> Result<(), KernelVerdict> {
    let attributes = Attributes {
        size: 48,
        policy: SCHED_IDLE,
        ..Attributes::default()
    };
    set_policy(&attributes).map_err(KernelVerdict::of_refusal)
}

/// Gives the calling thread the usual policy.
///
/// # Errors
/// [`KernelVerdict`] if that is not permitted: the thread stays as it is.
pub(crate) fn run_normally() -> Result<(), KernelVerdict> {
    let attributes = Attributes {
        size: 48,
        policy: SCHED_OTHER,
        ..Attributes::default()
    };
    set_policy(&attributes).map_err(KernelVerdict::of_refusal)
}

fn set_policy(attributes: &Attributes) -> Result<(), i32> {
    // SAFETY: the kernel reads 48 bytes, which the assertion above holds the type to, and changes
    // nothing but the policy of this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL))
    }
}

/// The CPUs on which the calling thread may run, ascending.
#[must_use]
pub fn allowed_cpus() -> Vec<u32> {
    cpus_of(sched_getaffinity(None).ok())
}

/// Binds the calling thread to a CPU.
///
/// # Errors
/// The kernel's, if there is no such CPU or the thread may not run there.
pub fn run_on(cpu: u32) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu as usize);
    Ok(sched_setaffinity(None, &only)?)
}

/// Binds another thread of this process to a CPU.
///
/// # Errors
/// The kernel's, if there is no such thread or CPU, or the thread may not run there.
pub fn bind_to(tid: u32, cpu: u32) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu as usize);
    let thread = Pid::from_raw(tid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    Ok(sched_setaffinity(Some(thread), &only)?)
}

/// A thread that has reserved CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineThread {
    /// Its thread id.
    pub tid: u32,
    /// Its reservation.
    pub reservation: DeadlineReservation,
}

impl DeadlineThread {
    /// The CPUs on which it may run, ascending; none if it has ended.
    #[must_use]
    pub fn cpus(&self) -> Vec<u32> {
        let pid = Pid::from_raw(self.tid.cast_signed());
        cpus_of(pid.map(Some).and_then(|pid| sched_getaffinity(pid).ok()))
    }
}

fn cpus_of(allowed: Option<CpuSet>) -> Vec<u32> {
    let allowed = allowed.unwrap_or_default();
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

/// The reservations of all threads that are visible here. Threads of other PID namespaces are not.
#[must_use]
pub fn present_reservations() -> Vec<DeadlineReservation> {
    let threads = deadline_threads();
    threads.iter().map(|thread| thread.reservation).collect()
}

/// All threads with a reservation that are visible here. Threads of other PID namespaces are not.
#[must_use]
pub fn deadline_threads() -> Vec<DeadlineThread> {
    let numbers = |folder: &str| -> Vec<u32> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    };
    let mut present = Vec::new();
    for pid in numbers("/proc") {
        let threads = numbers(&format!("/proc/{pid}/task"));
        present.extend(threads.into_iter().filter_map(|tid| {
            let reservation = reservation_of(tid)?;
            Some(DeadlineThread { tid, reservation })
        }));
    }
    present
}

/// What this thread has reserved; `None` if it has ended or has another policy.
fn reservation_of(tid: u32) -> Option<DeadlineReservation> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most the 48 bytes that the argument states.
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

    use super::{present_reservations, query_kernel, KernelVerdict, ReservedThread};

    fn reservation(runtime_us: u64, period_us: u64) -> DeadlineReservation {
        DeadlineReservation {
            runtime: Nanos::from_us(runtime_us),
            deadline: Nanos::from_us(period_us),
            period: Nanos::from_us(period_us),
        }
    }

    #[test]
    fn kernel_verdict_is_reported() {
        let small = reservation(100, 100_000);
        match query_kernel(small) {
            KernelVerdict::NotPermitted => {
                println!("skipped: reserving CPU time needs CAP_SYS_NICE");
                return;
            }
            verdict => assert_eq!(verdict, KernelVerdict::Accepted),
        }
        // More than a CPU, and a runtime above the deadline.
        assert_eq!(query_kernel(reservation(2, 1)), KernelVerdict::Unacceptable);
        // A thread that keeps a reservation is seen by others, and gone with its end.
        let odd = reservation(123, 98_765);
        let (sender, reserved) = channel();
        let (release, released) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let held = ReservedThread::reserve(odd, false);
            sender
                .send(held.as_ref().map(|_| ()).map_err(|&e| e))
                .unwrap();
            let _ = released.recv();
            drop(held);
            // Given back, although the thread lives on.
            assert!(!present_reservations().contains(&odd));
        });
        assert_eq!(reserved.recv().unwrap(), Ok(()));
        assert!(present_reservations().contains(&odd));
        drop(release);
        thread.join().unwrap();
        assert!(!present_reservations().contains(&odd));
    }
}
