//! Takes deliveries that are due, a few per endpoint, so that no receiver stands in another's way (Q10).
//!
//! A delivery that was taken comes back by itself when its lease has passed: the node that took it is gone.

use std::collections::{BTreeSet, HashMap};

use domain::circuit::Circuit;
use domain::limits::{
    DELIVERIES_BEYOND, DELIVERY_LEASE_MARGIN_MS, ENDPOINT_CONCURRENCY, ENDPOINTS_PER_ROUND, GIVE_UP_GRACE_S,
    MAINTENANCE_ROWS,
};
use domain::trigger::Source;
use domain::{DeliveryId, Standing, TenantId, Time};
use uuid::Uuid;

use crate::codec::from_json;
use crate::deliveries::paces::Paces;
use crate::deliveries::settle::{self, Close};
use crate::error::StoreError;
use crate::maintenance::beat::served_since;
use crate::secrets::Purpose;
use crate::store::Store;
use crate::tokens::standing::{Named, Standings};
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

/// What history says of an attempt whose node went away.
const INTERRUPTED: &str = "interrupted: the node that made this attempt went away";
const GIVEN_UP: &str = "given up: the receiver could not be reached in all the time there was";

/// A delivery in a node's hands.
#[derive(Clone, Debug)]
pub struct ClaimedDelivery {
    pub id: DeliveryId,
    /// Of this attempt; what is said of an older one is not heard.
    pub attempt: i32,
    pub endpoint: i64,
    pub url: String,
    pub method: String,
    pub headers: Vec<(String, String)>,
    pub secrets: Signing,
    pub body: String,
    pub timeout_ms: i64,
    pub depth: i32,
    pub created_at: Time,
    /// The source of the trigger that it is a run of, who registered that, and what they may do now.
    pub run_of: Option<(Source, String, Standing)>,
}

/// What a delivery is signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signing {
    /// Each signs; without any it is not signed.
    With(Vec<String>),
    /// There are secrets, or headers, that do not open: it cannot be sent now.
    Impossible { reason: String },
}

#[derive(Clone, Debug, Default)]
pub struct ClaimedDeliveries {
    pub deliveries: Vec<ClaimedDelivery>,
    /// Since when the oldest delivery that could be sent has been waiting.
    pub oldest_due_at: Option<Time>,
    pub open_circuits: usize,
}

impl Store {
    /// Up to `max` deliveries. `under_way` are this node's own, by endpoint.
    pub async fn claim_deliveries(
        &self,
        max: usize,
        under_way: HashMap<i64, usize>,
    ) -> Result<ClaimedDeliveries, StoreError> {
        // The look costs no transaction that writes: most of the time nothing is due.
        let look = self.read(Look { under_way: under_way.keys().copied().collect() }).await?;
        let mut claimed = ClaimedDeliveries {
            oldest_due_at: look.endpoints.first().map(|endpoint| endpoint.oldest),
            open_circuits: look.open,
            ..ClaimedDeliveries::default()
        };
        let wants = share(&look, max, &under_way, self.paces());
        if !wants.is_empty() || look.overdue {
            let claim = Claim { wants: wants.clone(), overdue: look.overdue };
            for (tenant, secrets, mut delivery) in self.write(claim).await? {
                delivery.secrets = self.signing(tenant, &delivery.url, secrets).await;
                if let Err(error) = self.open_headers(tenant, &mut delivery).await {
                    delivery.secrets = Signing::Impossible { reason: error.to_string() };
                }
                claimed.deliveries.push(delivery);
            }
        }
        for want in wants {
            let begun = claimed.deliveries.iter().filter(|delivery| delivery.endpoint == want.endpoint).count();
            if want.busy + begun >= want.most {
                self.paces().used_up(want.endpoint);
            }
        }
        Ok(claimed)
    }

    /// Opens what a delivery is signed with. One that cannot be opened stands in no other's way.
    async fn signing(&self, tenant: TenantId, url: &str, sealed: Vec<String>) -> Signing {
        let mut secrets = Vec::with_capacity(sealed.len());
        for text in sealed {
            match self.open_sealed(tenant, Purpose::Webhook { url }, &text).await {
                Ok(secret) => secrets.push(secret),
                Err(error) => return Signing::Impossible { reason: error.to_string() },
            }
        }
        Signing::With(secrets)
    }

    /// What a trigger's headers say, which may be a password.
    async fn open_headers(&self, tenant: TenantId, delivery: &mut ClaimedDelivery) -> Result<(), StoreError> {
        let ClaimedDelivery { headers, url, .. } = delivery;
        for (_, value) in headers {
            *value = self.open_sealed(tenant, Purpose::Webhook { url }, value).await?;
        }
        Ok(())
    }
}

/// What is to be sent to one endpoint.
#[derive(Clone, Copy)]
struct Want {
    endpoint: i64,
    tenant: TenantId,
    /// Under way already, and how many may be.
    busy: usize,
    most: usize,
    given: usize,
}

/// How many each endpoint gets of so many places.
///
/// One at a time goes to the tenant with the fewest requests on this node, and there to what has waited longest: nobody's
/// slow receivers take all places.
fn share(look: &Looked, places: usize, under_way: &HashMap<i64, usize>, paces: &Paces) -> Vec<Want> {
    let busy = |endpoint: i64| under_way.get(&endpoint).copied().unwrap_or(0);
    let mut held: HashMap<TenantId, usize> = HashMap::new();
    for (endpoint, tenant) in &look.under_way {
        *held.entry(*tenant).or_default() += busy(*endpoint);
    }
    let want = |endpoint: &DueEndpoint| {
        let DueEndpoint { id, tenant, circuit, .. } = *endpoint;
        Want { endpoint: id, tenant, busy: busy(id), most: circuit.concurrency(paces.of(id)), given: 0 }
    };
    let mut wants: Vec<Want> = look.endpoints.iter().map(want).collect();
    let mut beyond: usize = under_way.values().map(|busy| busy.saturating_sub(ENDPOINT_CONCURRENCY)).sum();
    for _ in 0..places {
        let with_room = wants.iter_mut().filter(|want| {
            let sent = want.busy + want.given;
            sent < want.most && (sent < ENDPOINT_CONCURRENCY || beyond < DELIVERIES_BEYOND)
        });
        // The first of equals has waited longest.
        let Some(next) = with_room.min_by_key(|want| held.get(&want.tenant).copied().unwrap_or(0)) else { break };
        beyond += usize::from(next.busy + next.given >= ENDPOINT_CONCURRENCY);
        next.given += 1;
        *held.entry(next.tenant).or_default() += 1;
    }
    wants.retain(|want| want.given > 0);
    wants
}

struct Look {
    /// Endpoints to which this node has requests under way.
    under_way: Vec<i64>,
}

struct Looked {
    /// Oldest first, without those whose circuit is open.
    endpoints: Vec<DueEndpoint>,
    /// Whose the endpoints are that have requests under way.
    under_way: Vec<(i64, TenantId)>,
    open: usize,
    /// Something is past the time at which it is given up, and there was time to try it.
    overdue: bool,
}

struct DueEndpoint {
    id: i64,
    tenant: TenantId,
    circuit: Circuit,
    oldest: Time,
}

// From one endpoint that is owed something to the next, by the index: endpoints are kept, and most are owed nothing. Those
// whose circuit is open come last, and are counted.
const ENDPOINTS: Sql = Sql::both(&["with recursive owed (endpoint) as (
         select endpoint from (select endpoint from deliveries where due_at is not null order by endpoint limit 1) low
         union all
         select (select d.endpoint from deliveries d where d.endpoint > owed.endpoint and d.due_at is not null
                 order by d.endpoint limit 1)
         from owed where owed.endpoint is not null)
     select id, failures, open_until, oldest, tenant, count(*) filter (where open_until > $1) over () as open from (
         select e.id, e.failures, e.open_until, e.tenant,
             (select d.due_at from deliveries d where d.endpoint = e.id and d.due_at is not null
              order by d.due_at, d.seq limit 1) as oldest
         from owed join endpoints e on e.id = owed.endpoint) heads
     where oldest <= $1 order by case when open_until > $1 then 1 else 0 end, oldest limit $2"]);
const TENANTS: Sql = Sql::new(
    &["select id, tenant from endpoints where id = $1"],
    "select id, tenant from endpoints where id = any($1::bigint[])",
);
const OVERDUE: Sql = Sql::both(&["select seq from deliveries where due_at is not null and give_up_at <= $1 limit 1"]);

impl Operation for Look {
    type Output = Looked;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Looked, StoreError> {
        let now = tx.now();
        let rows = tx.query(&ENDPOINTS, &[Param::Time(now), Param::Int(ENDPOINTS_PER_ROUND as i64)]).await?;
        let mut looked = Looked { endpoints: Vec::new(), under_way: Vec::new(), open: 0, overdue: false };
        for row in &rows {
            looked.open = row.int(5)? as usize;
            let circuit = Circuit { failures: row.int(1)? as u32, open_until: row.opt_time(2)? };
            if circuit.open_until.is_some_and(|until| until > now) {
                continue;
            }
            let (id, tenant, oldest) = (row.int(0)?, TenantId(row.int(4)?), row.time(3)?);
            looked.endpoints.push(DueEndpoint { id, tenant, circuit, oldest });
        }
        for row in tx.query_each(&TENANTS, &[Column::ints(self.under_way.iter().copied())], &[]).await? {
            looked.under_way.push((row.int(0)?, TenantId(row.int(1)?)));
        }
        if tx.query_opt(&OVERDUE, &[Param::Time(now)]).await?.is_some() {
            // While we were away nobody was tried: an outage of ours is nobody's fault.
            looked.overdue = served_since(tx).await?.plus_s(GIVE_UP_GRACE_S) <= now;
        }
        Ok(looked)
    }
}

struct Claim {
    /// How many to take of each endpoint.
    wants: Vec<Want>,
    /// There is something to give up.
    overdue: bool,
}

// The changes of one job arrive in order as long as none fails: what has not been tried once holds up what follows it.
const PEEK: Sql = Sql::new(
    &["select d.id, d.attempt, d.leased_at, d.tries_left from deliveries d
       where d.endpoint = $1 and d.due_at <= $3 and not exists (
           select 1 from deliveries e where e.job = d.job and e.seq < d.seq and e.due_at is not null and e.failures = 0)
       order by d.due_at, d.seq limit $2"],
    "select d.id, d.attempt, d.leased_at, d.tries_left
     from unnest($1::bigint[], $2::bigint[]) as n(endpoint, room) cross join lateral (
         select p.id, p.attempt, p.leased_at, p.tries_left from deliveries p
         where p.endpoint = n.endpoint and p.due_at <= $3 and not exists (
             select 1 from deliveries e where e.job = p.job and e.seq < p.seq and e.due_at is not null and e.failures = 0)
         order by p.due_at, p.seq limit n.room for update skip locked) d",
);
const TAKE: Sql = Sql::new(
    &["update deliveries set attempt = attempt + 1, tries_left = tries_left - 1, leased_at = $2,
           due_at = $2 + (timeout_ms + $3) * 1000
       where id = $1
       returning id, attempt, endpoint, url, method, headers, secrets, body, timeout_ms, depth, created_at, seq, tenant,
           trigger_id, source, principal"],
    "update deliveries d set attempt = attempt + 1, tries_left = tries_left - 1, leased_at = $2::timestamptz,
         due_at = $2::timestamptz + (timeout_ms + $3::bigint) * interval '1 millisecond'
     from unnest($1::uuid[]) as n(id) where d.id = n.id
     returning d.id, d.attempt, d.endpoint, d.url, d.method, d.headers, d.secrets, d.body, d.timeout_ms, d.depth,
         d.created_at, d.seq, d.tenant, d.trigger_id, d.source, d.principal",
);
const PAST: Sql = Sql::new(
    &[
        "select id, attempt from deliveries where due_at is not null and give_up_at <= $1 and leased_at is null limit $2",
    ],
    "select id, attempt from deliveries where due_at is not null and give_up_at <= $1 and leased_at is null limit $2
     for update skip locked",
);

/// A delivery whose secrets and headers are still sealed.
type Taken = (TenantId, Vec<String>, ClaimedDelivery);

impl Operation for Claim {
    type Output = Vec<Taken>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Taken>, StoreError> {
        let now = tx.now();
        if self.overdue {
            give_up(tx).await?;
        }
        let wants = [
            Column::ints(self.wants.iter().map(|want| want.endpoint)),
            Column::ints(self.wants.iter().map(|want| want.given as i64)),
        ];
        let rows = tx.query_each(&PEEK, &wants, &[Param::Time(now)]).await?;
        let (mut taken, mut lost, mut spent): (Vec<Uuid>, Vec<Lost>, Vec<Close>) = Default::default();
        for row in &rows {
            let (id, attempt) = (row.uuid(0)?, row.int(1)?);
            if let Some(at) = row.opt_time(2)? {
                lost.push(Lost { id, attempt, at });
            }
            if row.int(3)? > 0 {
                taken.push(id);
            } else {
                spent.push(Close { id, error: INTERRUPTED.into() });
            }
        }
        tell_lost(tx, &lost).await?;
        settle::close_failed(tx, &spent).await?;
        let params = [Param::Time(now), Param::Int(DELIVERY_LEASE_MARGIN_MS)];
        let mut rows = tx.query_each(&TAKE, &[Column::uuids(taken)], &params).await?;
        rows.sort_by_key(|row| row.int(11).unwrap_or_default());
        let mut taken = rows.iter().map(read).collect::<Result<Vec<Taken>, StoreError>>()?;
        judge_runs(tx, &mut taken).await?;
        Ok(taken)
    }
}

/// Says of each run of a trigger what whoever registered it may do now.
async fn judge_runs(tx: &mut Tx<'_>, taken: &mut [Taken]) -> Result<(), StoreError> {
    let named = |(tenant, _, delivery): &Taken| delivery.run_of.as_ref().map(|(_, name, _)| (*tenant, name.clone()));
    let names: BTreeSet<Named> = taken.iter().filter_map(named).collect();
    if names.is_empty() {
        return Ok(());
    }
    let standings = Standings { names }.run(tx).await?;
    for (tenant, _, delivery) in taken {
        if let Some((_, name, standing)) = &mut delivery.run_of {
            *standing = standings.get(&(*tenant, name.clone())).cloned().unwrap_or_default();
        }
    }
    Ok(())
}

/// What nobody could deliver in all the time it had is over, without another try.
async fn give_up(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let rows = tx.query(&PAST, &[Param::Time(tx.now()), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
    let past = rows.iter().map(|row| Ok(Close { id: row.uuid(0)?, error: GIVEN_UP.into() }));
    settle::close_failed(tx, &past.collect::<Result<Vec<_>, StoreError>>()?).await
}

/// An attempt that nobody told the end of.
struct Lost {
    id: Uuid,
    attempt: i64,
    at: Time,
}

const LOST: Sql = Sql::new(
    &["insert into delivery_attempts (delivery, attempt, at, duration_ms, error) values ($1, $2, $3, 0, $4)
       on conflict do nothing"],
    "insert into delivery_attempts (delivery, attempt, at, duration_ms, error)
     select n.id, n.attempt, n.at, 0, $4 from unnest($1::uuid[], $2::bigint[], $3::timestamptz[]) as n(id, attempt, at)
     on conflict do nothing",
);

async fn tell_lost(tx: &mut Tx<'_>, lost: &[Lost]) -> Result<(), StoreError> {
    let columns = [
        Column::uuids(lost.iter().map(|lost| lost.id)),
        Column::ints(lost.iter().map(|lost| lost.attempt)),
        Column::Time(lost.iter().map(|lost| Some(lost.at)).collect()),
    ];
    tx.execute_each(&LOST, &columns, &[Param::Text(INTERRUPTED)]).await.map(|_| ())
}

fn read(row: &Row) -> Result<Taken, StoreError> {
    let tenant = TenantId(row.int(12)?);
    let run_of = match (row.opt_uuid(13)?, Source::parse(&row.text(14)?)) {
        (Some(_), Some(source)) => Some((source, row.text(15)?, Standing::default())),
        _ => None,
    };
    let delivery = ClaimedDelivery {
        id: DeliveryId::new(row.uuid(0)?),
        attempt: row.int(1)? as i32,
        endpoint: row.int(2)?,
        url: row.text(3)?,
        method: row.text(4)?,
        headers: from_json(&row.text(5)?)?,
        secrets: Signing::With(Vec::new()),
        body: row.text(7)?,
        timeout_ms: row.int(8)?,
        depth: row.int(9)? as i32,
        created_at: row.time(10)?,
        run_of,
    };
    Ok((tenant, from_json(&row.text(6)?)?, delivery))
}
