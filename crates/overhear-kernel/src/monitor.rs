// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KernelMonitor`]: the kernel monitor of [MKM, section 4].

use std::os::fd::AsFd;
use std::path::Path;

use overhear_event::GapCause;
use overhear_event::{Inbox, Source, SourceError, StreamDescriptor, StreamId, Timestamp};

use crate::{
    BudgetState, GiveError, Kernel, KernelBuilder, KernelWrites, Probe, ProgStats, ReceiveError,
    SelectError, Sensor, Status,
};

/// A kernel monitor records kernel events of selected threads in its own buffers, one per CPU and
/// hook.
///
/// It is created suspended ([`KernelBuilder::create`]). It ends when it is terminated or dropped,
/// or when its process dies; then the kernel frees its programs and buffers. Several monitors may
/// track the same threads: each records only its own threads, and one BPF program per hook serves
/// all of them. Only the creating process has access, unless the monitor is handed over
/// ([`Self::give`]). The unique id of a thread is in the TRACKED element with which it begins
/// ([`Life::TRACKED`](overhear_event::kernel::Life::TRACKED)).
///
/// ```
/// use overhear_kernel::{ActiveBackend, Kernel, SelectError};
///
/// let mut monitor = Kernel::builder().buffer_bytes(1 << 20).create()?;
/// println!("{}, {} bytes", monitor.status()?.message, monitor.granted_bytes()?);
/// let me = std::process::id();
/// match monitor.status()?.active {
///     ActiveBackend::None => {}
///     _ => monitor.thread_monitor(me, 7)?,
/// }
/// monitor.resume()?;
/// std::thread::sleep(std::time::Duration::from_millis(1));
/// monitor.suspend()?;
/// let mut inbox = overhear_kernel::CountingInbox::default();
/// monitor.read(&mut inbox)?;
/// println!("{} elements, {} missed", inbox.elements, inbox.missed);
/// monitor.terminate()?;
/// assert_eq!(monitor.resume(), Err(SelectError::Terminated));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KernelMonitor {
    /// The kernel sensors, or the reason why the monitor is not usable any more.
    kernel: Result<Kernel, SelectError>,
}

impl KernelMonitor {
    pub(crate) const fn new(kernel: Kernel) -> Self {
        Self { kernel: Ok(kernel) }
    }

    /// Settings, as for [`Kernel`]; [`KernelBuilder::create`] creates the monitor.
    #[must_use]
    pub const fn builder() -> KernelBuilder {
        Kernel::builder()
    }

    fn kernel_ref(&self) -> Result<&Kernel, SelectError> {
        self.kernel.as_ref().map_err(|gone| gone.clone())
    }

    fn kernel(&mut self) -> Result<&mut Kernel, SelectError> {
        self.kernel.as_mut().map_err(|gone| gone.clone())
    }

    /// Selected backend, and sensors that this kernel lacks.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn status(&self) -> Result<&Status, SelectError> {
        Ok(self.kernel_ref()?.status())
    }

    /// Size of all buffers in bytes: the upper bound of what one read delivers.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn granted_bytes(&self) -> Result<u64, SelectError> {
        Ok(self.kernel_ref()?.granted_bytes())
    }

    /// Number of elements in each ring of a sensor, including the one that may be in progress;
    /// `None` if the sensor is not recorded.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn ring_elements(&self, sensor: Sensor) -> Result<Option<u64>, SelectError> {
        Ok(self.kernel_ref()?.ring_elements(sensor))
    }

    /// As [`Self::ring_elements`], for a probe.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn probe_ring_elements(&self, probe: &Probe) -> Result<Option<u64>, SelectError> {
        Ok(self.kernel_ref()?.probe_ring_elements(probe))
    }

    /// Number of reserved stream numbers, starting with the first one.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn stream_ids_used(&self) -> Result<u32, SelectError> {
        Ok(self.kernel_ref()?.stream_ids_used())
    }

    /// Number of elements that the kernel has committed to a stream; `None` for streams that are
    /// not BPF rings, and for a terminated monitor.
    #[must_use]
    pub fn committed(&self, id: StreamId) -> Option<u64> {
        self.kernel.as_ref().ok()?.committed(id)
    }

    /// Run count and run time of the BPF programs of a sensor; see [`Kernel::prog_stats`].
    #[must_use]
    pub fn prog_stats(&self, sensor: &str) -> Option<ProgStats> {
        self.kernel.as_ref().ok()?.prog_stats(sensor)
    }

    /// Totals of each sensor and probe that a budget can switch; see [`Kernel::writes`].
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn writes(&self) -> Result<Vec<KernelWrites>, SelectError> {
        Ok(self.kernel_ref()?.writes())
    }

    /// Switches a sensor or probe of this monitor to keep a budget; see
    /// [`Kernel::switch_for_budget`]. Other monitors of the same threads record as before.
    ///
    /// # Errors
    /// [`SelectError::Terminated`]. The inner error is that of [`Kernel::switch_for_budget`].
    pub fn switch_for_budget(
        &mut self,
        stream: StreamId,
        to: BudgetState,
    ) -> Result<Result<(), String>, SelectError> {
        Ok(self.kernel()?.switch_for_budget(stream, to))
    }

    /// Starts recording. No effect if the monitor is resumed already.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn resume(&mut self) -> Result<(), SelectError> {
        self.kernel()?.set_active(true);
        Ok(())
    }

    /// Pauses recording until the monitor is resumed. Events in the pause are neither recorded nor
    /// counted as missed; only TRACKED and UNTRACKED are recorded.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn suspend(&mut self) -> Result<(), SelectError> {
        self.kernel()?.set_active(false);
        Ok(())
    }

    /// Tracks one thread, without its children. The caller chooses the unique id; it is the `code`
    /// of the TRACKED element. No effect if the thread is tracked already.
    ///
    /// # Errors
    /// [`SelectError`] if there is no such thread, or the kernel refuses.
    pub fn thread_monitor(&mut self, thread: u32, unique_id: u32) -> Result<(), SelectError> {
        self.kernel()?.monitor_thread(thread, unique_id)
    }

    /// Stops tracking a thread.
    ///
    /// # Errors
    /// [`SelectError`] if there is no such thread, or this monitor does not track it.
    pub fn thread_unmonitor(&mut self, thread: u32) -> Result<(), SelectError> {
        self.kernel()?.unmonitor_thread(thread)
    }

    /// Tracks all threads of a process, and all threads and processes that they create.
    ///
    /// # Errors
    /// [`SelectError`] if there is no such process, or the kernel refuses.
    pub fn process_monitor(&mut self, pid: u32) -> Result<(), SelectError> {
        self.kernel()?.monitor_process(pid)
    }

    /// As [`Self::process_monitor`], for a child that is held between its fork and its execve.
    /// Until the execve only scheduling is recorded.
    ///
    /// # Errors
    /// As for [`Self::process_monitor`].
    pub fn held_process_monitor(&mut self, pid: u32) -> Result<(), SelectError> {
        self.kernel()?.monitor_held_process(pid)
    }

    /// Tracks all threads in a cgroup (of the unified hierarchy) and below it, until they leave.
    /// Threads that are created there are tracked from their begin. Threads that are moved there
    /// are tracked from the next [`Self::read`] on.
    ///
    /// # Errors
    /// [`SelectError`] if the path is no cgroup, or the backend is not BPF.
    pub fn cgroup_monitor(&mut self, path: &Path) -> Result<(), SelectError> {
        self.kernel()?.monitor_cgroup(path)
    }

    /// Tracks all threads of the machine, or of the PID namespace of this process, and records
    /// events of idle CPUs.
    ///
    /// # Errors
    /// [`SelectError`] if the kernel refuses, or the backend is not BPF.
    pub fn all_monitor(&mut self) -> Result<(), SelectError> {
        self.kernel()?.monitor_all()
    }

    /// Delivers the elements since the last read. It makes no system call, unless a process changes
    /// its cgroup.
    ///
    /// # Errors
    /// [`SelectError::Terminated`]. A damaged stream is reported through `Inbox::complain`.
    pub fn read(&mut self, inbox: &mut dyn Inbox) -> Result<(), SelectError> {
        if let Err(error) = self.kernel()?.poll(inbox) {
            inbox.complain(error);
        }
        Ok(())
    }

    /// Stops recording and waits until exiting threads have left their CPUs. One more
    /// [`Self::read`] delivers the remaining elements and closes the streams. The monitor cannot be
    /// resumed.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn finish(&mut self) -> Result<(), SelectError> {
        self.kernel()?.finish();
        Ok(())
    }

    /// Ends the monitor. Unread elements are discarded, and all further calls fail.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn terminate(&mut self) -> Result<(), SelectError> {
        self.kernel()?;
        self.kernel = Err(SelectError::Terminated);
        Ok(())
    }

    /// Hands the monitor over to the process at the other end of a connected Unix socket, with its
    /// buffers, unread elements, tracked threads and state (resumed or suspended). From then on the
    /// receiver alone reads and controls it, and it ends with the receiver, even if this process
    /// lives on. Nothing is missed as long as the buffers have room.
    ///
    /// It blocks while the socket is full, and with perf records until the receiver has mapped the
    /// rings, because the kernel releases a ring that no process has mapped. A monitor of BPF
    /// programs must have dedicated programs ([`KernelBuilder::dedicated_programs`]), or be the
    /// only one of this process. The receiver needs no privilege, but as many free descriptors as
    /// the monitor has.
    ///
    /// # Errors
    /// [`GiveError`]; then the monitor stays here.
    pub fn give(&mut self, to: impl AsFd) -> Result<(), GiveError> {
        let kernel = self.kernel().map_err(GiveError::Unavailable)?;
        kernel.give(to.as_fd())?;
        self.kernel = Err(SelectError::HandedOver);
        Ok(())
    }

    /// Waits for a monitor from the other end of a connected Unix socket, and owns it from then on.
    /// Reading continues where the giver stopped; the stream numbers are those of the giver.
    ///
    /// The content of the events is not verified: receive monitors only from processes that you
    /// trust.
    ///
    /// # Errors
    /// [`ReceiveError`] if the other side closes, or the message is invalid.
    pub fn receive(from: impl AsFd) -> Result<Self, ReceiveError> {
        Kernel::receive(from.as_fd()).map(Self::new)
    }
}

impl Source for KernelMonitor {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        match &mut self.kernel {
            Ok(kernel) => kernel.poll(inbox),
            Err(_) => Ok(()),
        }
    }
}

/// An inbox that only counts elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountingInbox {
    /// Elements delivered.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
}

impl Inbox for CountingInbox {
    fn open(&mut self, _: std::sync::Arc<StreamDescriptor>) {}

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, _: &[u8]) {
        self.elements += 1;
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn close(&mut self, _: StreamId) {}
}
