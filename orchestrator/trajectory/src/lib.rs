//! The trajectory forest: an agent's work on one prompt, as runs of token ids that are never encoded again.
//!
//! A [`Trajectory`] is a forest of [`Turn`]s. Each turn is one call of the model. It stores the ids of its prompt
//! that no earlier turn has, and the ids that the engine sampled, with log-probabilities and versions. A
//! [`Request`] is compared with the answers that were emitted for the stored turns. The [`Prompt`] of a request
//! consists of the ids of the turn that the request continues, followed by the ids of the text that the chat
//! template renders after that turn. Each path from a root to a leaf becomes a [`Row`].
//!
//! ```
//! use rolldock_dispatch::{FinishReason, VersionSpan};
//! use rolldock_trajectory::{
//!     Chat, Delivery, Emitted, HistoryPolicy, Plan, Record, Request, Sampled, Template, TemplateError, Trajectory,
//! };
//! use serde_json::json;
//!
//! // A template with one token for each character. `rolldock_data::TextCodec` is the template of a model.
//! struct Letters;
//! impl Template for Letters {
//!     fn render(&self, chat: &Chat<'_>) -> Result<String, TemplateError> {
//!         let part = |message: &serde_json::Value| {
//!             format!("{}:{}.", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
//!         };
//!         let text: String = chat.messages.iter().map(part).collect();
//!         Ok(text + if chat.add_generation_prompt { "assistant:" } else { "" })
//!     }
//!     fn encode(&self, text: &str) -> Result<Vec<u32>, TemplateError> {
//!         Ok(text.chars().map(u32::from).collect())
//!     }
//!     fn decode(&self, ids: &[u32]) -> String {
//!         ids.iter().filter_map(|id| char::from_u32(*id)).collect()
//!     }
//!     fn is_end(&self, id: u32) -> bool {
//!         id == u32::from('.')
//!     }
//! }
//!
//! // 1. Begin.
//! let mut trajectory = Trajectory::new("t-1", HistoryPolicy::Append);
//!
//! // 2. The first request: nothing is stored, so the engine (or the template) renders all of it.
//! let question = json!({ "role": "user", "content": "1 + 1" });
//! let request = Request::chat(vec![question.clone()], None)?.with_body(b"the body of the request");
//! let prompt = match trajectory.plan(&request, &Letters)? {
//!     Plan::Ready(prompt) => prompt,
//!     Plan::Whole(whole) => whole.with_ids(Trajectory::render_whole(&request, &Letters)?),
//! };
//! assert_eq!(Letters.decode(prompt.ids()), "user:1 + 1.assistant:");
//!
//! // 3. The engine samples `prompt.ids()`. The record is written before the last byte of the answer leaves,
//! //    and applied when it is durable.
//! let sampled = |text: &str| Sampled {
//!     ids: Letters.encode(text).unwrap(),
//!     logprobs: vec![-0.5; text.len()],
//!     version_spans: vec![VersionSpan { version: "7".into(), start: 0, end: text.len() as u32 }],
//!     versions_reported: true,
//!     finish_reason: FinishReason::Stop,
//! };
//! let answer = Emitted {
//!     message: json!({ "role": "assistant", "content": "2", "reasoning": "hm" }),
//!     ids: vec!["response-1".to_owned()],
//! };
//! let record = trajectory.record(&prompt, sampled("<hm>2."), &answer, Delivery::Pending)?;
//! let turn = record.turn();
//! let mut journal = vec![record.encode()];
//! trajectory.apply(record)?;
//!
//! // 4. The answer was delivered.
//! let delivered = Trajectory::record_delivery(turn, Delivery::Delivered);
//! journal.push(delivered.encode());
//! trajectory.apply(delivered)?;
//!
//! // 5. A marked retry of the same body finds the turn, whose answer is sent again.
//! assert_eq!(trajectory.retried(b"the body of the request"), Some(turn));
//! assert_eq!(trajectory.turn(turn).unwrap().emitted()["content"], "2");
//!
//! // 6. The next request continues the turn, though the agent dropped the reasoning. The sampled ids stay.
//! let messages = vec![
//!     question,
//!     json!({ "role": "assistant", "content": "2" }),
//!     json!({ "role": "user", "content": "and 3?" }),
//! ];
//! let prompt = trajectory.prompt(&Request::chat(messages, None)?, &Letters)?;
//! assert_eq!(prompt.parent(), Some(turn));
//! assert_eq!(Letters.decode(prompt.ids()), "user:1 + 1.assistant:<hm>2.user:and 3?.assistant:");
//! trajectory.add(&prompt, sampled("5."), &Emitted::text("5"))?;
//!
//! // 7. Each path is a row. Tokens that were not sampled are masked.
//! let rows = trajectory.rows();
//! let masked: String = rows[0].response_mask.iter().map(|bit| bit.to_string()).collect();
//! assert_eq!(rows.len(), 1);
//! assert_eq!(Letters.decode(&rows[0].response_ids), "<hm>2.user:and 3?.assistant:5.");
//! assert_eq!(masked, "111111000000000000000000000011");
//!
//! // 8. After a restart, the records give the same trajectory.
//! let records = journal.iter().map(|bytes| Record::decode(bytes)).collect::<Result<Vec<_>, _>>()?;
//! let rebuilt = Trajectory::rebuild("t-1", HistoryPolicy::Append, records)?;
//! assert_eq!(rebuilt.turn(turn), trajectory.turn(turn));
//! # Ok::<(), rolldock_trajectory::TrajectoryError>(())
//! ```
//!
//! # Invariants
//! The functions in [`invariants`] check them.
//! - Every prompt that was sent is the beginning of its turn's path, id by id.
//! - Exactly one row trains each sampled token of an answer that the agent has received. No row trains any other
//!   token.
//! - A trajectory that is rebuilt from its records equals the trajectory that made them.
//! - A prompt never builds on a turn that is not applied.
//! - A turn stores only what it adds, so memory and records grow linearly with the turns.
//!
//! # Deliberately absent
//! There is no HTTP, no clock, and no randomness: callers mint ids, keep records durable, and set limits.
//! Rewards of whole trajectories belong to callers too.

pub mod invariants;

mod advantages;
mod canonical;
mod error;
mod find;
mod forest;
mod id;
mod message;
mod plan;
mod prompt;
mod record;
mod request;
mod row;
mod rows;
mod template;
mod turn;

#[cfg(test)]
mod tests;

pub use advantages::{TurnAdvantages, turn_advantages};
pub use error::{ErrorClass, TemplateError, TrajectoryError};
pub use find::Found;
pub use forest::{HistoryPolicy, Trajectory};
pub use id::TurnId;
pub use prompt::{Plan, Prompt, Whole};
pub use record::Record;
pub use request::Request;
pub use row::{Row, RowTurn};
pub use template::{Chat, Template};
pub use turn::{Delivery, Emitted, Origin, Sampled, Turn};
