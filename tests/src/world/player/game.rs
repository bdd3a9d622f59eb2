//! What a game is made of: its configuration, its tables and how rough it is, from the seed.

use walferry_core::batch::{Declaration, DeliveryClass};
use walferry_core::config::{Config, Limits};
use walferry_core::policies::{CopyFilter, Doubt, Policies, PromotionLoss, SlotLoss};
use walferry_core::schema::SchemaSupport;

use super::{Player, Size};
use crate::world::World;
use crate::world::dice::Dice;
use crate::world::features::BUILT;
use crate::world::source::Source;

/// How rough a game is, in percent of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The process dies, per mille.
    pub crash: u64,
    /// An operation fails.
    pub operation: u64,
    /// A stream is lost.
    pub stream: u64,
    /// Somebody asks for a stop.
    pub stop: u64,
    /// Faults beyond the ordinary, in percent.
    pub more: u64,
}

impl Faults {
    /// None at all.
    pub const NONE: Self = Self { crash: 0, operation: 0, stream: 0, stop: 0, more: 0 };
}

/// Which features a game uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one answer per feature")]
pub struct Uses {
    /// Tables change their shape.
    pub schema: bool,
    /// Slots get lost.
    pub recreation: bool,
    /// The source is promoted.
    pub promotion: bool,
    /// Destinations blame tables.
    pub quarantine: bool,
    /// Tables come and go while a pipeline runs.
    pub listings: bool,
}

fn limits(dice: &mut Dice) -> Limits {
    Limits {
        copy_concurrency: dice.between(1, 3),
        copy_connections_per_table: if BUILT.readers { dice.between(1, 3) } else { 1 },
        batch_events: dice.below(4),
        batch_ms: dice.below(3) * 50,
        flush_batches: dice.between(1, 4),
        // A failed write is offered again before or after what is owed has become old.
        retry_ms: if dice.chance(50) { 5_000 } else { 100 },
        retries_max: if dice.chance(20) { 1 } else { 1_000 },
        main_retries_max: 1_000,
        memory_bytes: 32 << 20,
        idle_checkpoint_ms: if dice.chance(50) { 1 } else { 10_000 },
        idle_checkpoint_bytes: 4_096,
        heartbeat_ms: if BUILT.heartbeat && dice.chance(20) { 5_000 } else { 0 },
        fence_bytes: if dice.chance(50) { 4_096 } else { 1 << 20 },
        horizon_step_bytes: 4_096,
        policies: policies(dice),
        ..Limits::default()
    }
}

fn policies(dice: &mut Dice) -> Policies {
    let names = |dice: &mut Dice| match dice.below(3) {
        0 => CopyFilter::None,
        1 => CopyFilter::Only(["public.a".to_owned()].into()),
        _ => CopyFilter::AllBut(["public.b".to_owned()].into()),
    };
    Policies {
        slot_failover: BUILT.promotion && dice.chance(30),
        slot_loss: if BUILT.recreation && dice.chance(60) {
            SlotLoss::Recreate
        } else {
            SlotLoss::Reject
        },
        promotion_loss: if BUILT.recreation && dice.chance(50) {
            PromotionLoss::Resync
        } else {
            PromotionLoss::Reject
        },
        membership_change: Doubt::Recopy,
        silent_rewrite: if dice.chance(90) { Doubt::Recopy } else { Doubt::Report },
        copy: if BUILT.adoption && dice.chance(20) { names(dice) } else { CopyFilter::All },
    }
}

impl Player {
    /// A game of a size.
    #[must_use]
    pub fn sized(seed: u64, size: Size) -> Self {
        let mut dice = Dice::new(seed);
        let class = match dice.below(10) {
            0..=4 => DeliveryClass::ExactlyOnce,
            5..=6 => DeliveryClass::Idempotent,
            _ => DeliveryClass::Append,
        };
        let limits = limits(&mut dice);
        let rough = size == Size::Short || !dice.chance(10);
        // A table whose tries are used up needs a person.
        let faults = if rough {
            Faults {
                crash: dice.below(4),
                operation: dice.below(3),
                stream: dice.below(2),
                stop: dice.below(2),
                more: dice.below(3),
            }
        } else {
            Faults::NONE
        };
        let schema = BUILT.schema && dice.chance(50);
        let declaration = Declaration {
            id: "sim:".to_owned(),
            class,
            lanes_max: u32::try_from(dice.between(1, 3)).unwrap_or(1),
            copy_in_flight_max: u32::try_from(dice.between(1, 2)).unwrap_or(1),
            wants_messages: dice.chance(20),
            partial_rows: true,
            schema_changes: if schema { SchemaSupport::ALL } else { SchemaSupport::NONE },
        };
        let uses = Uses {
            schema,
            recreation: BUILT.recreation && dice.chance(30),
            promotion: limits.policies.slot_failover,
            quarantine: BUILT.quarantine && dice.chance(30),
            listings: BUILT.listings && dice.chance(50),
        };
        let (tables, transactions) = match size {
            Size::Short => (2, dice.between(3, 20)),
            Size::Long => (dice.between(1, 4), dice.between(3, 60)),
        };
        let tables = u32::try_from(tables).unwrap_or(1);
        let rows = u32::try_from(dice.below(8)).unwrap_or(0);
        let mut source = Source::new(tables, rows);
        source.version = if uses.promotion || dice.chance(50) { 180_000 } else { 140_000 };
        source.ddl_messages = schema && dice.chance(50);
        let config = Config {
            publication: "app".to_owned(),
            database: "app".to_owned(),
            destination: declaration,
            until: None,
            limits,
        };
        let mut world = World::new(config, source);
        world.keep_budgets();
        Self {
            world,
            durable: [0, 30, 60, 100][usize::try_from(dice.below(4)).unwrap_or(0)],
            transactions_left: transactions,
            row_bytes: if dice.chance(10) { 6 << 20 } else { 100 },
            faults,
            uses,
            size,
            steps: 0,
            thrown: 0,
            promoted: false,
            taken_away: false,
            dice,
        }
    }
}
