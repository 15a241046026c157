//! Checks that a trajectory holds little beside its tokens and texts. A counting allocator measures the memory
//! in use: the bytes that were asked for, and the blocks of the program's allocator that hold them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait; it only passes on and adds up")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use mimalloc::MiMalloc;
use rolldock_dispatch::{FinishReason, VersionSpan};
use rolldock_trajectory::{
    Chat, Emitted, HistoryPolicy, Request, Sampled, Template, TemplateError, Trajectory,
};
use serde_json::{Value, json};

struct Counting;

/// The bytes that callers asked for.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The bytes of the blocks that callers got. A block may be larger than what the caller asked for, for example
/// because the allocator kept the block when its content shrank.
static BLOCK_BYTES: AtomicUsize = AtomicUsize::new(0);

impl Counting {
    fn add(bytes: usize, pointer: *mut u8) {
        HELD_BYTES.fetch_add(bytes, Ordering::Relaxed);
        // SAFETY: the pointer is null or a block of this allocator.
        BLOCK_BYTES.fetch_add(unsafe { MiMalloc.usable_size(pointer) }, Ordering::Relaxed);
    }

    fn remove(bytes: usize, pointer: *mut u8) {
        HELD_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: as above.
        BLOCK_BYTES.fetch_sub(unsafe { MiMalloc.usable_size(pointer) }, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed unchanged to the allocator of the program, and the counters are atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the same contract.
        let pointer = unsafe { MiMalloc.alloc(layout) };
        Self::add(layout.size(), pointer);
        pointer
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::remove(layout.size(), pointer);
        // SAFETY: the caller upholds the same contract.
        let moved = unsafe { MiMalloc.realloc(pointer, layout, size) };
        Self::add(size, moved);
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::remove(layout.size(), pointer);
        // SAFETY: the caller upholds the same contract.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A template with one token for each four characters of a message.
struct Fours;

impl Template for Fours {
    fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError> {
        let part = |message: &Value| format!("<{}>", message["content"].as_str().unwrap_or_default());
        Ok(chat.messages.iter().map(part).collect())
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
        Ok((0..text.len().div_ceil(4) as u32).collect())
    }

    fn decode(&self, ids: &[u32]) -> String {
        "text".repeat(ids.len())
    }

    fn is_end(&self, _: u32) -> bool {
        false
    }
}

const TURNS: usize = 20;
const SAMPLED: usize = 200;

/// Bytes of the trajectories' tokens and texts: 8 for a sampled token, 4 for any other token, and the new
/// messages.
struct Need(usize);

/// A trajectory with one question, and with results of 160 characters between the turns.
fn trajectory(number: usize, need: &mut Need) -> Trajectory {
    let mut trajectory = Trajectory::new(format!("trajectory-{number}"), HistoryPolicy::Append);
    let mut messages = vec![json!({ "role": "user", "content": "question ".repeat(40) })];
    let mut known_tokens = 0;
    for turn in 0..TURNS {
        let request = Request::chat(messages.clone(), None).unwrap();
        let prompt = trajectory.prompt(&request, &Fours).unwrap();
        let text = format!("{number} {turn} {}", "word ".repeat(SAMPLED));
        let call = json!({ "id": format!("call_{number}_{turn}"), "function": { "name": "run", "arguments": "{}" } });
        let message = json!({ "role": "assistant", "content": text, "tool_calls": [call] });
        let sampled = Sampled {
            ids: (0..SAMPLED).map(|token| (number * turn + token) as u32).collect(),
            logprobs: vec![-0.5; SAMPLED],
            version_spans: vec![VersionSpan { version: "7".into(), start: 0, end: SAMPLED as u32 }],
            versions_reported: true,
            finish_reason: FinishReason::Stop,
        };
        need.0 += SAMPLED * 8 + (prompt.ids().len() - known_tokens) * 4;
        known_tokens = prompt.ids().len() + SAMPLED;
        need.0 += message.to_string().len() + messages.last().unwrap().to_string().len();
        let emitted = Emitted { message: message.clone(), ids: vec![format!("chatcmpl-{number}-{turn}")] };
        trajectory.add(&prompt, sampled, &emitted).unwrap();
        messages.push(message);
        messages.push(json!({ "role": "tool", "content": "result 8".repeat(20) }));
    }
    trajectory
}

#[test]
fn open_trajectories_hold_little_beside_their_tokens_and_texts() {
    const MEASURED: usize = 100;
    let mut need = Need(0);
    let counts = || [&HELD_BYTES, &BLOCK_BYTES].map(|count| count.load(Ordering::Relaxed));
    let [held_before, blocks_before] = counts();
    let mut open = Vec::with_capacity(MEASURED);
    for number in 0..MEASURED {
        open.push(trajectory(number, &mut need));
    }
    let [held, blocks] = counts();
    let (held, blocks) = (held - held_before, blocks - blocks_before);
    let told: usize = open.iter().map(Trajectory::bytes).sum();
    let ratio = held as f64 / need.0 as f64;
    let each = blocks / MEASURED;
    eprintln!("held={held} told={told} need={} ratio={ratio:.3} blocks={blocks}, {each} each", need.0);
    assert!(told.abs_diff(held) * 100 <= held, "bytes() says {told}, the allocator says {held}");
    assert!(ratio <= 1.25, "{held} bytes for tokens and texts of {}", need.0);
    // The allocator rounds up to its block sizes, which adds at most 12 percent.
    assert!(blocks as f64 <= 1.12 * held as f64, "the blocks have {blocks} bytes, of which {held} are used");
    assert!(each * 5_000 <= 400_000_000, "5,000 trajectories would hold more than 400 MB");
    let rows = open[MEASURED - 1].rows();
    assert_eq!((rows.len(), rows[0].turns.len()), (1, TURNS));
}
