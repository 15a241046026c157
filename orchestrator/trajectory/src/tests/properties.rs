//! Compares any interleaving of branches, retries, edits of history, compaction and changes of the tool list
//! with a reference model that keeps every prompt whole.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::invariants;
use crate::tests::letters::{END, Habit, Letters, sampled, says};
use crate::{Delivery, Emitted, HistoryPolicy, Origin, Prompt, Record, Request, Trajectory, TurnId};

/// What an agent, the gateway or the network does next. Numbers select among the existing conversations,
/// turns and messages.
#[derive(Debug, Clone)]
enum Event {
    /// An agent or a sub-agent begins a conversation of its own.
    Begin { words: String },
    /// A conversation sends a request, and the engine samples these letters.
    Call { who: usize, letters: String, calls_tool: bool, cut_off: bool, delivery: usize },
    /// A request whose answer is written and not yet durable.
    Overlap { who: usize, letters: String },
    /// The oldest answer of an `Overlap` becomes durable.
    Settle,
    /// The agent's next message.
    Say { who: usize, role: usize, words: String },
    /// A conversation sends its request again, not marked as a retry.
    Again { who: usize, letters: String },
    /// A copy of a conversation goes its own way.
    Split { who: usize },
    /// A message of a conversation is changed.
    Edit { who: usize, at: usize, words: String },
    /// A conversation is replaced by a summary.
    Compact { who: usize, words: String },
    /// A conversation gets another tool list.
    Tools { who: usize, list: usize },
    /// A marked retry receives the stored answer.
    Replay { turn: usize },
    /// A turn gets a reward.
    Reward { turn: usize, eighths: i8 },
    /// The process is killed, and starts again.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let letters = || "(\\(a\\))?[ab]{1,2}";
    let words = || "[a-b]{1,2}";
    let who = || 0..8_usize;
    prop_oneof![
        1 => words().prop_map(|words| Event::Begin { words }),
        6 => (who(), letters(), any::<bool>(), any::<bool>(), 0..3_usize).prop_map(
            |(who, letters, calls_tool, cut_off, delivery)| Event::Call { who, letters, calls_tool, cut_off, delivery }
        ),
        1 => (who(), letters()).prop_map(|(who, letters)| Event::Overlap { who, letters }),
        1 => Just(Event::Settle),
        5 => (who(), 0..3_usize, words()).prop_map(|(who, role, words)| Event::Say { who, role, words }),
        1 => (who(), letters()).prop_map(|(who, letters)| Event::Again { who, letters }),
        1 => who().prop_map(|who| Event::Split { who }),
        1 => (who(), 0..8_usize, words()).prop_map(|(who, at, words)| Event::Edit { who, at, words }),
        1 => (who(), words()).prop_map(|(who, words)| Event::Compact { who, words }),
        1 => (who(), 0..3_usize).prop_map(|(who, list)| Event::Tools { who, list }),
        1 => (0..16_usize).prop_map(|turn| Event::Replay { turn }),
        1 => (0..16_usize, -8..8_i8).prop_map(|(turn, eighths)| Event::Reward { turn, eighths }),
        1 => Just(Event::Restart),
    ]
}

#[derive(Debug, Clone, Default)]
struct Conversation {
    messages: Vec<Value>,
    tools: usize,
    /// The turn of the last answer, if this answer is a tool call and nothing was edited after it.
    known: Option<TurnId>,
}

struct World {
    template: Letters,
    trajectory: Trajectory,
    conversations: Vec<Conversation>,
    /// Prompt and sampled ids of each durable turn.
    truth: BTreeMap<TurnId, (Vec<u32>, Vec<u32>)>,
    journal: Vec<Vec<u8>>,
    unsettled: Vec<(Record, Vec<u32>, Vec<u32>)>,
    minted: usize,
}

impl World {
    fn new(template: Letters, policy: HistoryPolicy) -> Self {
        Self {
            template,
            trajectory: Trajectory::new("t", policy),
            conversations: vec![Conversation { messages: vec![says("user", "q")], ..Default::default() }],
            truth: BTreeMap::new(),
            journal: Vec::new(),
            unsettled: Vec::new(),
            minted: 0,
        }
    }

    fn chosen(&mut self, who: usize) -> &mut Conversation {
        let count = self.conversations.len();
        &mut self.conversations[who % count]
    }

    fn apply(&mut self, record: Record) {
        self.journal.push(record.encode());
        self.trajectory.apply(record).unwrap();
    }

    /// The prompt of a conversation, checked against the model.
    fn prompt(&mut self, who: usize) -> Prompt {
        let conversation = self.chosen(who).clone();
        let tools = (conversation.tools > 0).then(|| json!([{ "name": conversation.tools }]));
        let request = Request::chat(conversation.messages, tools).unwrap();
        let prompt = self.trajectory.prompt(&request, &self.template).unwrap();
        assert_eq!(invariants::spliced(&self.trajectory, &prompt), Ok(()));
        if let Some(known) = conversation.known {
            assert_eq!(prompt.parent(), Some(known), "the last answer has a minted id");
            let (sent, drawn) = &self.truth[&known];
            if prompt.origin() == Origin::Spliced {
                assert!(prompt.ids().starts_with(&[&sent[..], &drawn[..]].concat()));
            }
        }
        if self.template.0 == Habit::Plain && self.trajectory.policy() == HistoryPolicy::Append {
            assert_ne!(prompt.origin(), Origin::SentinelLost);
        }
        prompt
    }

    fn record(
        &mut self,
        prompt: &Prompt,
        letters: &str,
        calls_tool: bool,
        cut_off: bool,
        delivery: Delivery,
    ) -> (Record, Value) {
        let said = if calls_tool { format!("{letters}[f]") } else { letters.to_owned() };
        let text = if cut_off { said } else { format!("{said}{END}") };
        let mut message = says("assistant", letters);
        if calls_tool {
            self.minted += 1;
            let id = format!("call-{}", self.minted);
            message["tool_calls"] =
                json!([{ "id": id, "function": { "name": "f", "arguments": "{\"x\": 1.0}" } }]);
        }
        let emitted = Emitted { message: message.clone(), ids: Vec::new() };
        let sampled = sampled(&text, self.minted as u32 % 3);
        (self.trajectory.record(prompt, sampled, &emitted, delivery).unwrap(), message)
    }

    fn settle(&mut self, record: Record, prompt: Vec<u32>, drawn: Vec<u32>) {
        let turn = record.turn();
        self.apply(record);
        assert_eq!(invariants::sent_as_stored(&self.trajectory, turn, &prompt, &drawn), Ok(()));
        self.truth.insert(turn, (prompt, drawn));
    }

    fn drawn(letters: &str, calls_tool: bool, cut_off: bool) -> Vec<u32> {
        let text =
            format!("{letters}{}{}", if calls_tool { "[f]" } else { "" }, if cut_off { "" } else { "." });
        text.chars().map(u32::from).collect()
    }

    fn call(&mut self, who: usize, letters: &str, calls_tool: bool, cut_off: bool, delivery: usize) {
        let prompt = self.prompt(who);
        let delivery = [Delivery::Delivered, Delivery::Pending, Delivery::Failed][delivery];
        let (record, mut message) = self.record(&prompt, letters, calls_tool, cut_off, delivery);
        let turn = record.turn();
        self.settle(record, prompt.ids().to_vec(), Self::drawn(letters, calls_tool, cut_off));
        if delivery == Delivery::Failed {
            return;
        }
        if calls_tool {
            // The agent serialises the arguments anew.
            message["tool_calls"][0]["function"]["arguments"] = json!("{\"x\":1}");
        }
        let conversation = self.chosen(who);
        conversation.messages.push(message);
        conversation.known = calls_tool.then_some(turn);
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Begin { words } => self.conversations.push(Conversation {
                messages: vec![says("system", &words), says("user", "q")],
                ..Default::default()
            }),
            Event::Call { who, letters, calls_tool, cut_off, delivery } => {
                self.call(who, &letters, calls_tool, cut_off, delivery);
            }
            Event::Overlap { who, letters } => {
                let prompt = self.prompt(who);
                let (record, _) = self.record(&prompt, &letters, false, false, Delivery::Delivered);
                self.unsettled.push((record, prompt.ids().to_vec(), Self::drawn(&letters, false, false)));
            }
            Event::Settle if !self.unsettled.is_empty() => {
                let (record, prompt, drawn) = self.unsettled.remove(0);
                self.settle(record, prompt, drawn);
            }
            Event::Settle => {}
            Event::Say { who, role, words } => {
                let role = ["user", "tool", "system"][role];
                self.chosen(who).messages.push(says(role, &words));
            }
            Event::Again { who, letters } => {
                let prompt = self.prompt(who);
                let (record, _) = self.record(&prompt, &letters, false, false, Delivery::Delivered);
                self.settle(record, prompt.ids().to_vec(), Self::drawn(&letters, false, false));
            }
            Event::Split { who } => {
                let copy = self.chosen(who).clone();
                self.conversations.push(copy);
            }
            Event::Edit { who, at, words } => {
                let conversation = self.chosen(who);
                let at = at % conversation.messages.len();
                conversation.messages[at]["content"] = words.into();
                conversation.known = None;
            }
            Event::Compact { who, words } => {
                let conversation = self.chosen(who);
                conversation.messages = vec![says("user", &words)];
                conversation.known = None;
            }
            Event::Tools { who, list } => {
                let conversation = self.chosen(who);
                if conversation.tools != list {
                    (conversation.tools, conversation.known) = (list, None);
                }
            }
            Event::Replay { turn } => {
                self.change(turn, |turn| Trajectory::record_delivery(turn, Delivery::Replayed))
            }
            Event::Reward { turn, eighths } => {
                self.change(turn, |turn| Trajectory::record_reward(turn, f32::from(eighths) / 8.0));
            }
            Event::Restart => self.restart(),
        }
    }

    /// Applies the record that `change` makes for one of the turns.
    fn change(&mut self, turn: usize, change: impl Fn(TurnId) -> Record) {
        let turns: Vec<TurnId> = self.truth.keys().copied().collect();
        if let Some(turn) = turns.get(turn % turns.len().max(1)) {
            self.apply(change(*turn));
        }
    }

    fn restart(&mut self) {
        let records = self.journal.iter().map(|bytes| Record::decode(bytes).unwrap());
        let rebuilt = Trajectory::rebuild("t", self.trajectory.policy(), records).unwrap();
        assert_eq!(rebuilt, self.trajectory);
        assert_eq!(rebuilt.rows(), self.trajectory.rows());
        self.trajectory = rebuilt;
        // Records that were not durable are lost. The numbers of their turns may be assigned again.
        self.unsettled.clear();
    }

    fn check_rows(&self) {
        let rows = self.trajectory.rows();
        assert_eq!(invariants::aligned(&rows), Ok(()));
        assert_eq!(invariants::trained_once(&self.trajectory, &rows), Ok(()));
        let mut trained: BTreeMap<TurnId, usize> = BTreeMap::new();
        for row in &rows {
            let (prompt, drawn) = &self.truth[&row.turns.last().unwrap().turn];
            let path: Vec<u32> = row.prompt_ids.iter().chain(&row.response_ids).copied().collect();
            assert_eq!(path, [&prompt[..], &drawn[..]].concat());
            for part in row.turns.iter().filter(|part| part.is_trained) {
                let (prompt, drawn) = &self.truth[&part.turn];
                assert_eq!(&row.response_ids[part.start as usize..part.end as usize], &drawn[..]);
                assert_eq!(&path[..row.prompt_ids.len() + part.start as usize], &prompt[..]);
                *trained.entry(part.turn).or_default() += 1;
            }
        }
        assert!(trained.values().all(|times| *times == 1), "{trained:?}");
        for turn in self.trajectory.turns() {
            let is_delivered = matches!(turn.delivery(), Delivery::Delivered | Delivery::Replayed);
            assert!(!is_delivered || trained.contains_key(&turn.id()), "turn={} is lost", turn.id());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_interleaving_keeps_the_invariants(
        events in prop::collection::vec(event(), 1..60),
        habit in prop::sample::select(vec![Habit::Plain, Habit::DropsThoughts, Habit::Cuts, Habit::Hoists]),
        as_template: bool,
    ) {
        let policy = if as_template { HistoryPolicy::Template } else { HistoryPolicy::Append };
        let mut world = World::new(Letters(habit), policy);
        for event in events {
            world.play(event);
        }
        world.restart();
        world.check_rows();
    }
}
