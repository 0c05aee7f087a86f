// SPDX-License-Identifier: MIT OR Apache-2.0
//! perfetto-sdk: an instant with one u64, recorded in this process into a ring buffer.

use anyhow::{anyhow, Result};
use perfetto_sdk::heap_buffer::HeapBuffer;
use perfetto_sdk::pb_msg::{PbMsg, PbMsgWriter};
use perfetto_sdk::producer::{Backends, Producer, ProducerInitArgsBuilder};
use perfetto_sdk::protos::config::data_source_config::DataSourceConfig;
use perfetto_sdk::protos::config::trace_config::{
    TraceConfig, TraceConfigBufferConfig, TraceConfigDataSource,
};
use perfetto_sdk::protos::config::track_event::track_event_config::TrackEventConfig;
use perfetto_sdk::tracing_session::TracingSession;
use perfetto_sdk::track_event::{EventContext, TrackEvent, TrackEventDebugArg};
use perfetto_sdk::{track_event_categories, track_event_instant};

use super::Peer;

track_event_categories! {
    pub(crate) mod categories {
        ("bench", "What is measured", []),
    }
}
use categories as perfetto_te_ns;

const BUFFER_KB: u32 = 1024;

pub(super) fn start() -> Result<Peer> {
    let arguments = ProducerInitArgsBuilder::new().backends(Backends::IN_PROCESS);
    Producer::init(arguments.build());
    TrackEvent::init();
    perfetto_te_ns::register().map_err(|error| anyhow!("{error}"))?;
    let mut session = TracingSession::in_process().map_err(|error| anyhow!("{error}"))?;
    session.setup(&configuration()?);
    session.start_blocking();
    Ok(Peer::new("perfetto-sdk instant", 200, session, instants))
}

#[inline(never)]
fn instants(elements: u64) {
    for element in 0..elements {
        track_event_instant!("bench", "value", |event: &mut EventContext| {
            event.add_debug_arg("value", TrackEventDebugArg::Uint64(element));
        });
    }
}

fn configuration() -> Result<Vec<u8>> {
    let writer = PbMsgWriter::new();
    let heap = HeapBuffer::new(writer.stream_writer());
    let mut message = PbMsg::new(&writer).map_err(|error| anyhow!("{error:?}"))?;
    {
        let mut trace = TraceConfig { msg: &mut message };
        trace.set_buffers(|buffer: &mut TraceConfigBufferConfig| {
            buffer.set_size_kb(BUFFER_KB);
        });
        trace.set_data_sources(|sources: &mut TraceConfigDataSource| {
            sources.set_config(|source: &mut DataSourceConfig| {
                source.set_name("track_event");
                source.set_track_event_config(|events: &mut TrackEventConfig| {
                    events.set_enabled_categories("bench");
                });
            });
        });
    }
    message.finalize();
    let mut bytes = vec![0; writer.stream_writer().get_written_size()];
    heap.copy_into(&mut bytes);
    Ok(bytes)
}
