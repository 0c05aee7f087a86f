// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of an export: collects bytes, and counts elements when their last byte is written.

use std::io::{self, Write};

use super::ExportError;

/// Bytes are written when this many are buffered, or earlier.
const BATCH_BYTES: usize = 64 << 10;

/// The destination of an export. After an error all output is dropped.
#[derive(Debug)]
pub(super) struct Output<W> {
    out: W,
    buffer: Vec<u8>,
    /// Ends of elements in the buffer, each with the number of elements that end there.
    pending: Vec<(usize, u64)>,
    /// Number of elements that were wholly written.
    elements: u64,
    error: Option<io::Error>,
}

impl<W: Write> Output<W> {
    pub(super) const fn new(out: W) -> Self {
        Self {
            out,
            buffer: Vec::new(),
            pending: Vec::new(),
            elements: 0,
            error: None,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// The last pushed bytes complete `elements` elements.
    pub(super) fn complete(&mut self, elements: u64) {
        if self.error.is_some() || elements == 0 {
            return;
        }
        if self.buffer.is_empty() {
            self.elements += elements;
        } else {
            self.pending.push((self.buffer.len(), elements));
        }
    }

    fn flush(&mut self) {
        let mut written = 0;
        while self.error.is_none() && written < self.buffer.len() {
            match self.out.write(&self.buffer[written..]) {
                Ok(0) => self.error = Some(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.error = Some(error),
            }
        }
        let whole = self.pending.drain(..).filter(|(end, _)| *end <= written);
        self.elements += whole.map(|(_, elements)| elements).sum::<u64>();
        self.buffer.clear();
    }

    /// Writes the rest.
    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        self.flush();
        if self.error.is_none() {
            self.error = self.out.flush().err();
        }
        match self.error {
            None => Ok(()),
            Some(source) => Err(ExportError {
                elements: self.elements,
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::{Output, BATCH_BYTES};

    /// Accepts this many bytes, then fails.
    struct Takes(usize);

    impl Write for Takes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            match taken {
                0 => Err(io::ErrorKind::BrokenPipe.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn elements_count_when_they_are_wholly_written() {
        let element = [b'x'; 100];
        let write = |bytes| {
            let mut output = Output::new(Takes(bytes));
            for _ in 0..2 * BATCH_BYTES / element.len() {
                output.push(&element);
                output.complete(1);
            }
            output.finish()
        };
        assert!(write(usize::MAX).is_ok());
        for (bytes, elements) in [
            (0, 0),
            (99, 0),
            (100, 1),
            (1_234, 12),
            (BATCH_BYTES + 200, 657),
        ] {
            let error = write(bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(error.elements(), elements, "{bytes}");
        }
    }
}
