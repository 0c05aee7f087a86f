// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KernelMonitor`]: the kernel monitor of seed 003, section 4.

use std::os::fd::AsFd;
use std::path::Path;

use overhear_event::GapCause;
use overhear_event::{Inbox, Source, SourceError, StreamDescriptor, StreamId, Timestamp};

use crate::{
    GiveError, Kernel, KernelBuilder, Probe, ReceiveError, Runs, SelectError, Sensor, Status,
};

/// A kernel monitor: it records the kernel events of the threads that its creator chooses, in
/// buffers of its own, one per CPU and hook.
///
/// It is created suspended ([`KernelBuilder::create`]) and lives until it is terminated or
/// dropped, or its process dies; then the kernel frees all that belonged to it. Several monitors
/// may track the same threads: each hears all of its own and nothing of the others', and one BPF
/// program per hook serves them all. Nobody but its creator can reach it, unless it is handed over
/// ([`Self::give`]); a thread's unique id
/// comes in the TRACKED element with which it begins
/// ([`Life::TRACKED`](overhear_event::kernel::Life::TRACKED)).
///
/// ```
/// use overhear_kernel::{Active, Kernel, SelectError};
///
/// let mut monitor = Kernel::builder().buffer_bytes(1 << 20).create()?;
/// println!("{}, {} bytes", monitor.status()?.sentence, monitor.granted_bytes()?);
/// let me = std::process::id();
/// match monitor.status()?.active {
///     Active::None => {}
///     _ => monitor.thread_monitor(me, 7)?,
/// }
/// monitor.resume()?;
/// std::thread::sleep(std::time::Duration::from_millis(1));
/// monitor.suspend()?;
/// let mut inbox = overhear_kernel::Count::default();
/// monitor.read(&mut inbox)?;
/// println!("{} elements, {} missed", inbox.elements, inbox.missed);
/// monitor.terminate()?;
/// assert_eq!(monitor.resume(), Err(SelectError::Terminated));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KernelMonitor {
    /// Or why there is none any more.
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

    /// Which sensor is at work, and what this kernel lacks.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn status(&self) -> Result<&Status, SelectError> {
        Ok(self.kernel_ref()?.status())
    }

    /// Bytes of all its buffers: what a reader needs to hold the most that can be read at once.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn granted_bytes(&self) -> Result<u64, SelectError> {
        Ok(self.kernel_ref()?.granted_bytes())
    }

    /// How many elements each ring of a sensor holds, the one that may be in the making among them; `None`
    /// where it has no rings: this kernel or user lacks it, or it is not among the sensors.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn ring_elements(&self, sensor: Sensor) -> Result<Option<u64>, SelectError> {
        Ok(self.kernel_ref()?.ring_elements(sensor))
    }

    /// As [`Self::ring_elements`], of a probe.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn probe_ring_elements(&self, probe: &Probe) -> Result<Option<u64>, SelectError> {
        Ok(self.kernel_ref()?.probe_ring_elements(probe))
    }

    /// How many stream numbers from the first one on are reserved.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn stream_ids_used(&self) -> Result<u32, SelectError> {
        Ok(self.kernel_ref()?.stream_ids_used())
    }

    /// How many elements the kernel has committed to a stream up to now; `None` for streams that
    /// are not BPF rings, and for a terminated monitor.
    #[must_use]
    pub fn committed(&self, id: StreamId) -> Option<u64> {
        self.kernel.as_ref().ok()?.committed(id)
    }

    /// How often and how long the BPF programs of a sensor have run, as by [`Kernel::runs`].
    #[must_use]
    pub fn runs(&self, sensor: &str) -> Option<Runs> {
        self.kernel.as_ref().ok()?.runs(sensor)
    }

    /// Records from now on. A monitor that is resumed already stays so.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn resume(&mut self) -> Result<(), SelectError> {
        self.kernel()?.set_active(true);
        Ok(())
    }

    /// Records nothing until it is resumed. What happens meanwhile is not heard and not counted as
    /// missed; only beginnings and ends of tracking are told.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn suspend(&mut self) -> Result<(), SelectError> {
        self.kernel()?.set_active(false);
        Ok(())
    }

    /// Tracks one thread, but not what it creates. The caller sees to it that the id is unique; it
    /// comes as `code` of the TRACKED element. A thread that is tracked already stays so.
    ///
    /// # Errors
    /// [`SelectError`] if there is no such thread, or the kernel refuses.
    pub fn thread_monitor(&mut self, thread: u32, unique_id: u32) -> Result<(), SelectError> {
        self.kernel()?.monitor_thread(thread, unique_id)
    }

    /// Tracks a thread no more.
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

    /// As [`Self::process_monitor`], of a child that is held between its fork and its execve: of what it does until
    /// then, as a copy of its parent, nothing but scheduling is recorded.
    ///
    /// # Errors
    /// As for [`Self::process_monitor`].
    pub fn held_process_monitor(&mut self, pid: u32) -> Result<(), SelectError> {
        self.kernel()?.monitor_held_process(pid)
    }

    /// Tracks all threads in a cgroup (of the unified hierarchy) and below it, as long as they are
    /// there. Those that are born there are tracked from their birth, those that are moved there
    /// from the next [`Self::read`] on.
    ///
    /// # Errors
    /// [`SelectError`] if the path is no cgroup, or the sensor is not BPF.
    pub fn cgroup_monitor(&mut self, path: &Path) -> Result<(), SelectError> {
        self.kernel()?.monitor_cgroup(path)
    }

    /// Tracks all threads of the machine, or of the PID namespace of this process, and hears the
    /// CPUs themselves.
    ///
    /// # Errors
    /// [`SelectError`] if the kernel refuses, or the sensor is not BPF.
    pub fn all_monitor(&mut self) -> Result<(), SelectError> {
        self.kernel()?.monitor_all()
    }

    /// Delivers what was recorded since it was last read. It takes no system call while no
    /// process changes its cgroup.
    ///
    /// # Errors
    /// [`SelectError::Terminated`]; a damaged stream is complained of in the inbox.
    pub fn read(&mut self, inbox: &mut dyn Inbox) -> Result<(), SelectError> {
        if let Err(error) = self.kernel()?.poll(inbox) {
            inbox.complain(error);
        }
        Ok(())
    }

    /// Stops recording and waits until threads that have announced their exit have left their
    /// CPUs. One more [`Self::read`] delivers what is left and closes the streams; nothing can be
    /// resumed any more.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn finish(&mut self) -> Result<(), SelectError> {
        self.kernel()?.finish();
        Ok(())
    }

    /// Ends the monitor. What was not read is gone, and all further calls fail.
    ///
    /// # Errors
    /// [`SelectError::Terminated`].
    pub fn terminate(&mut self) -> Result<(), SelectError> {
        self.kernel()?;
        self.kernel = Err(SelectError::Terminated);
        Ok(())
    }

    /// Hands the monitor over to whoever receives it from the other end of a connected Unix socket: with its
    /// buffers and all that is in them, its threads, and as resumed or suspended as it is. From then on
    /// the receiver alone reads and controls it, and it ends with the receiver, whatever becomes of this
    /// process. Nothing is missed in between, as long as the buffers last.
    ///
    /// It waits while the socket has no room, and with perf records until the receiver has mapped their rings:
    /// the kernel gives a ring up as soon as nobody has it mapped. A monitor of BPF programs must have
    /// programs of its own ([`KernelBuilder::apart`]), or be the only one of this process. The receiver needs
    /// no privilege, but as many descriptors as the monitor has.
    ///
    /// # Errors
    /// [`GiveError`]; the monitor stays then.
    pub fn give(&mut self, to: impl AsFd) -> Result<(), GiveError> {
        let kernel = self.kernel().map_err(GiveError::Gone)?;
        kernel.give(to.as_fd())?;
        self.kernel = Err(SelectError::Given);
        Ok(())
    }

    /// Waits for a monitor that is handed over to the other end of a connected Unix socket, and owns it from
    /// then on. It reads on where the giver has ended; stream numbers are the giver's.
    ///
    /// What it hears is the giver's word: receive monitors only from processes that you trust.
    ///
    /// # Errors
    /// [`ReceiveError`] if the other side closes, or something else comes.
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

/// An inbox that only counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Elements delivered.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
}

impl Inbox for Count {
    fn open(&mut self, _: std::sync::Arc<StreamDescriptor>) {}

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, _: &[u8]) {
        self.elements += 1;
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn close(&mut self, _: StreamId) {}
}
