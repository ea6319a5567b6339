//! Runs: when a node starts, when it cannot start any more, and how a run ends.

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    Running,
    Succeeded,
    Failed,
    Canceled,
}

impl RunState {
    pub const ALL: [Self; 4] = [Self::Running, Self::Succeeded, Self::Failed, Self::Canceled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// What the first failure of a node does to the rest of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Cancels the nodes that have not ended, except those with `when: failure` or `when: always`.
    #[default]
    Cancel,
    /// Nodes that do not need the failed one continue.
    Continue,
}

impl OnFailure {
    pub const ALL: [Self; 2] = [Self::Cancel, Self::Continue];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Continue => "continue",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == text)
    }
}

/// Which outcomes of its needs start a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NeedCondition {
    /// Every need succeeded.
    #[default]
    Success,
    /// Every need ended, and at least one failed or was canceled.
    Failure,
    /// Every need ended.
    Always,
}

impl NeedCondition {
    pub const ALL: [Self; 3] = [Self::Success, Self::Failure, Self::Always];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Always => "always",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|condition| condition.as_str() == text)
    }
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    Succeeded,
    Failed,
    Canceled,
    /// Its needs ended in a way that does not start it, and nothing failed. The job's state is `canceled`, and the run
    /// can still succeed.
    Skipped,
}

impl NodeEnd {
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Failed, Self::Canceled, Self::Skipped];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Skipped => "skipped",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == text)
    }
}

/// The needs of a node that has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeProgress {
    pub condition: NeedCondition,
    /// Needs that have not ended.
    pub unmet: i64,
    /// Needs that failed or were canceled.
    pub failed: i64,
}

/// What follows for a node from the end of one of its needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeDecision {
    Wait,
    Start,
    /// The needs cannot be met any more. The text says which need prevents it.
    End(NodeEnd, String),
}

impl NodeProgress {
    /// Records that the need `name` ended.
    pub fn need_ended(&mut self, name: &str, end: NodeEnd) -> NodeDecision {
        self.unmet -= 1;
        self.failed += i64::from(matches!(end, NodeEnd::Failed | NodeEnd::Canceled));
        match (self.condition, end) {
            (NeedCondition::Success, NodeEnd::Failed) => NodeDecision::End(NodeEnd::Canceled, format!("{name} failed")),
            (NeedCondition::Success, NodeEnd::Canceled) => {
                NodeDecision::End(NodeEnd::Canceled, format!("{name} was canceled"))
            }
            (NeedCondition::Success, NodeEnd::Skipped) => {
                NodeDecision::End(NodeEnd::Skipped, format!("{name} was skipped"))
            }
            _ if self.unmet > 0 => NodeDecision::Wait,
            (NeedCondition::Failure, _) if self.failed == 0 => {
                NodeDecision::End(NodeEnd::Skipped, "no need failed".into())
            }
            _ => NodeDecision::Start,
        }
    }
}

/// The state of a run whose last job has ended.
pub const fn run_end(is_canceled: bool, failed: i64, canceled: i64) -> RunState {
    if is_canceled {
        RunState::Canceled
    } else if failed > 0 {
        RunState::Failed
    } else if canceled > 0 {
        RunState::Canceled
    } else {
        RunState::Succeeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(condition: NeedCondition, ends: &[NodeEnd]) -> NodeDecision {
        let mut progress = NodeProgress { condition, unmet: ends.len() as i64, failed: 0 };
        let names = ["a", "b", "c"];
        for (name, end) in names.iter().zip(ends) {
            match progress.need_ended(name, *end) {
                NodeDecision::Wait => {}
                decision => return decision,
            }
        }
        NodeDecision::Wait
    }

    #[test]
    fn a_node_starts_when_its_needs_ended_as_its_condition_says() {
        use NeedCondition::{Always, Failure, Success};
        use NodeEnd::{Canceled, Failed, Skipped, Succeeded};
        let end = |end, cause: &str| NodeDecision::End(end, cause.into());
        let cases: [(NeedCondition, &[NodeEnd], NodeDecision); 10] = [
            (Success, &[Succeeded, Succeeded], NodeDecision::Start),
            (Success, &[Succeeded, Failed], end(Canceled, "b failed")),
            (Success, &[Canceled, Succeeded], end(Canceled, "a was canceled")),
            (Success, &[Skipped, Succeeded], end(Skipped, "a was skipped")),
            (Failure, &[Succeeded, Failed, Succeeded], NodeDecision::Start),
            (Failure, &[Succeeded, Succeeded], end(Skipped, "no need failed")),
            (Failure, &[Succeeded, Skipped], end(Skipped, "no need failed")),
            (Failure, &[Canceled], NodeDecision::Start),
            (Always, &[Succeeded, Failed, Skipped], NodeDecision::Start),
            (Always, &[Canceled], NodeDecision::Start),
        ];
        for (condition, ends, expected) in cases {
            assert_eq!(decide(condition, ends), expected, "{condition:?} {ends:?}");
        }
    }

    #[test]
    fn a_node_waits_for_every_need() {
        let mut progress = NodeProgress { condition: NeedCondition::Always, unmet: 3, failed: 0 };
        assert_eq!(progress.need_ended("a", NodeEnd::Failed), NodeDecision::Wait);
        assert_eq!(progress.need_ended("b", NodeEnd::Succeeded), NodeDecision::Wait);
        assert_eq!(progress.need_ended("c", NodeEnd::Succeeded), NodeDecision::Start);
    }

    #[test]
    fn a_run_fails_with_its_first_failed_job_unless_it_was_canceled() {
        assert_eq!(run_end(false, 0, 0), RunState::Succeeded);
        assert_eq!(run_end(false, 1, 5), RunState::Failed);
        assert_eq!(run_end(false, 0, 1), RunState::Canceled);
        assert_eq!(run_end(true, 1, 0), RunState::Canceled);
    }
}
