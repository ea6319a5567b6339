//! Claims due deliveries, a bounded number per endpoint, so that one slow receiver does not block others.
//!
//! A claimed delivery is leased. If its node crashes, the delivery becomes due again when the lease expires.

use std::collections::{BTreeSet, HashMap};

use domain::limits::{
    DELIVERIES_ABOVE_BASE, DELIVERY_LEASE_MARGIN_MS, ENDPOINT_CONCURRENCY, ENDPOINTS_PER_ROUND, ENDPOINTS_PER_TENANT,
    FAILING_DELIVERIES, GIVE_UP_GRACE_S, MAINTENANCE_ROWS,
};
use domain::triggers::circuit::Circuit;
use domain::triggers::trigger::Source;
use domain::{DeliveryId, PrincipalRights, TenantId, Time};
use uuid::Uuid;

use crate::access::secrets::Purpose;
use crate::access::tokens::principal_rights::{FindPrincipalRights, PrincipalName};
use crate::db::codec::from_json;
use crate::db::service_heartbeat::served_since;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::deliveries::adaptive_concurrency::EndpointLimiter;
use crate::triggers::deliveries::settle;
use crate::triggers::deliveries::settle::FailedDelivery;

/// Error of an attempt whose node did not report its end.
const INTERRUPTED: &str = "interrupted: the node that made this attempt stopped";
/// Error of a delivery that passed `give_up_at`.
const GIVEN_UP: &str = "given up: the receiver could not be reached before the deadline";

/// A delivery that this node has claimed.
#[derive(Clone, Debug)]
pub struct ClaimedDelivery {
    pub id: DeliveryId,
    /// Number of this attempt. It is the fencing token: results of older attempts are ignored.
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
    /// For a run of a trigger: the event source, the principal that registered the trigger, and its current rights.
    pub run_of: Option<(Source, String, PrincipalRights)>,
}

/// How a delivery is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signing {
    /// Each secret adds a signature. Without a secret the request is not signed.
    With(Vec<String>),
    /// A sealed secret or header cannot be opened, so the delivery cannot be sent now.
    Impossible { reason: String },
}

#[derive(Clone, Debug, Default)]
pub struct ClaimedDeliveries {
    pub deliveries: Vec<ClaimedDelivery>,
    /// When the oldest delivery that could be sent became due.
    pub oldest_due_at: Option<Time>,
    pub open_circuits: usize,
}

impl Store {
    /// Claims up to `max` deliveries. `under_way` is the number of this node's requests in flight by endpoint.
    pub async fn claim_deliveries(
        &self,
        max: usize,
        under_way: HashMap<i64, usize>,
    ) -> Result<ClaimedDeliveries, StoreError> {
        // Scan in a read transaction first: most of the time nothing is due.
        let scan = self.read(ScanDue { under_way: under_way.keys().copied().collect() }).await?;
        let mut claimed = ClaimedDeliveries {
            oldest_due_at: scan.endpoints.first().map(|endpoint| endpoint.oldest),
            open_circuits: scan.open,
            ..ClaimedDeliveries::default()
        };
        let claims = share(&scan, max, &under_way, self.endpoint_limiter());
        if !claims.is_empty() || scan.overdue {
            let claim = ClaimDeliveries { claims: claims.clone(), overdue: scan.overdue };
            for (tenant, secrets, mut delivery) in self.write(claim).await? {
                delivery.secrets = self.signing(tenant, &delivery.url, secrets).await;
                if let Err(error) = self.open_headers(tenant, &mut delivery).await {
                    delivery.secrets = Signing::Impossible { reason: error.to_string() };
                }
                claimed.deliveries.push(delivery);
            }
        }
        for claim in claims {
            let started = claimed.deliveries.iter().filter(|delivery| delivery.endpoint == claim.endpoint).count();
            if claim.busy + started >= claim.limit {
                self.endpoint_limiter().saturated(claim.endpoint);
            }
        }
        Ok(claimed)
    }

    /// Opens the signing secrets of a delivery. A failure affects only this delivery.
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

    /// Opens the delivery's header values, which are sealed because they can contain passwords.
    async fn open_headers(&self, tenant: TenantId, delivery: &mut ClaimedDelivery) -> Result<(), StoreError> {
        let ClaimedDelivery { headers, url, .. } = delivery;
        for (_, value) in headers {
            *value = self.open_sealed(tenant, Purpose::Webhook { url }, value).await?;
        }
        Ok(())
    }
}

/// The deliveries to claim for one endpoint.
#[derive(Clone, Copy)]
struct EndpointClaim {
    endpoint: i64,
    tenant: TenantId,
    /// Requests in flight.
    busy: usize,
    /// Maximum requests in flight.
    limit: usize,
    granted: usize,
    /// The last attempt failed.
    is_failing: bool,
}

/// Distributes `slots` among the due endpoints.
///
/// Each slot goes to the tenant with the fewest requests on this node, and there to the endpoint that has waited longest.
/// One tenant's slow receivers therefore cannot use all slots.
fn share(
    scan: &DueScan,
    slots: usize,
    under_way: &HashMap<i64, usize>,
    endpoint_limiter: &EndpointLimiter,
) -> Vec<EndpointClaim> {
    let busy = |endpoint: i64| under_way.get(&endpoint).copied().unwrap_or(0);
    let mut per_tenant: HashMap<TenantId, usize> = HashMap::new();
    let mut failing = 0;
    for UnderWay { endpoint, tenant, is_failing } in &scan.under_way {
        *per_tenant.entry(*tenant).or_default() += busy(*endpoint);
        failing += if *is_failing { busy(*endpoint) } else { 0 };
    }
    let claim = |endpoint: &DueEndpoint| {
        let DueEndpoint { id, tenant, circuit, .. } = *endpoint;
        EndpointClaim {
            endpoint: id,
            tenant,
            busy: busy(id),
            limit: circuit.concurrency(endpoint_limiter.of(id)),
            granted: 0,
            is_failing: circuit.failures > 0,
        }
    };
    let mut claims: Vec<EndpointClaim> = scan.endpoints.iter().map(claim).collect();
    let mut above_base: usize = under_way.values().map(|busy| busy.saturating_sub(ENDPOINT_CONCURRENCY)).sum();
    for _ in 0..slots {
        let eligible = claims.iter_mut().filter(|claim| {
            let sent = claim.busy + claim.granted;
            sent < claim.limit
                && (sent < ENDPOINT_CONCURRENCY || above_base < DELIVERIES_ABOVE_BASE)
                && (!claim.is_failing || failing < FAILING_DELIVERIES)
        });
        // Endpoints are sorted by age and `min_by_key` returns the first minimum, which has waited longest.
        let Some(next) = eligible.min_by_key(|claim| per_tenant.get(&claim.tenant).copied().unwrap_or(0)) else {
            break;
        };
        above_base += usize::from(next.busy + next.granted >= ENDPOINT_CONCURRENCY);
        failing += usize::from(next.is_failing);
        next.granted += 1;
        *per_tenant.entry(next.tenant).or_default() += 1;
    }
    claims.retain(|claim| claim.granted > 0);
    claims
}

struct ScanDue {
    /// Endpoints to which this node has requests in flight.
    under_way: Vec<i64>,
}

struct DueScan {
    /// Due endpoints with a closed circuit, oldest first.
    endpoints: Vec<DueEndpoint>,
    /// The endpoints with requests in flight.
    under_way: Vec<UnderWay>,
    open: usize,
    /// At least one delivery has passed `give_up_at`, and the service was up long enough to try it.
    overdue: bool,
}

struct UnderWay {
    endpoint: i64,
    tenant: TenantId,
    is_failing: bool,
}

struct DueEndpoint {
    id: i64,
    tenant: TenantId,
    circuit: Circuit,
    oldest: Time,
}

// A loose index scan that skips from one endpoint with due deliveries to the next: endpoints are retained, and most have no
// pending delivery. Endpoints with an open circuit sort last and are counted. The limit per tenant applies before the limit
// of all, so that the receivers of one tenant do not hide those of the others.
const ENDPOINTS: Sql = Sql::both(&["with recursive owed (endpoint) as (
         select endpoint from (select endpoint from deliveries where due_at is not null order by endpoint limit 1) low
         union all
         select (select d.endpoint from deliveries d where d.endpoint > owed.endpoint and d.due_at is not null
                 order by d.endpoint limit 1)
         from owed where owed.endpoint is not null)
     select id, failures, open_until, oldest, tenant, open from (
         select heads.*, count(*) filter (where open_until > $1) over () as open,
             row_number() over (partition by tenant, case when open_until > $1 then 1 else 0 end order by oldest) as place
         from (
             select e.id, e.failures, e.open_until, e.tenant,
                 (select d.due_at from deliveries d where d.endpoint = e.id and d.due_at is not null
                  order by d.due_at, d.seq limit 1) as oldest
             from owed join endpoints e on e.id = owed.endpoint) heads
         where oldest <= $1) due
     where place <= $3 order by case when open_until > $1 then 1 else 0 end, oldest limit $2"]);
const TENANTS: Sql = Sql::new(
    &["select id, tenant, failures from endpoints where id = $1"],
    "select id, tenant, failures from endpoints where id = any($1::bigint[])",
);
const OVERDUE: Sql = Sql::both(&["select seq from deliveries where due_at is not null and give_up_at <= $1 limit 1"]);

impl Operation for ScanDue {
    type Output = DueScan;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DueScan, StoreError> {
        let now = tx.now();
        let limits = [Param::Int(ENDPOINTS_PER_ROUND as i64), Param::Int(ENDPOINTS_PER_TENANT as i64)];
        let rows = tx.query(&ENDPOINTS, &[Param::Time(now), limits[0], limits[1]]).await?;
        let mut scan = DueScan { endpoints: Vec::new(), under_way: Vec::new(), open: 0, overdue: false };
        for row in &rows {
            scan.open = row.int("open")? as usize;
            let circuit = Circuit { failures: row.int("failures")? as u32, open_until: row.opt_time("open_until")? };
            if circuit.open_until.is_some_and(|until| until > now) {
                continue;
            }
            let (id, tenant, oldest) = (row.int("id")?, TenantId(row.int("tenant")?), row.time("oldest")?);
            scan.endpoints.push(DueEndpoint { id, tenant, circuit, oldest });
        }
        for row in tx.query_each(&TENANTS, &[Column::ints(self.under_way.iter().copied())], &[]).await? {
            let (endpoint, tenant) = (row.int("id")?, TenantId(row.int("tenant")?));
            scan.under_way.push(UnderWay { endpoint, tenant, is_failing: row.int("failures")? > 0 });
        }
        if tx.query_opt(&OVERDUE, &[Param::Time(now)]).await?.is_some() {
            // Server downtime does not count: deliveries get `GIVE_UP_GRACE_S` of service before they are given up.
            scan.overdue = served_since(tx).await?.plus_s(GIVE_UP_GRACE_S) <= now;
        }
        Ok(scan)
    }
}

struct ClaimDeliveries {
    /// The number of deliveries to claim per endpoint.
    claims: Vec<EndpointClaim>,
    /// Overdue deliveries exist that must be given up.
    overdue: bool,
}

// The changes of one job are delivered in order as long as none fails: a delivery that was not attempted yet blocks the
// later ones of its job.
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
type SealedDelivery = (TenantId, Vec<String>, ClaimedDelivery);

impl Operation for ClaimDeliveries {
    type Output = Vec<SealedDelivery>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SealedDelivery>, StoreError> {
        let now = tx.now();
        if self.overdue {
            give_up(tx).await?;
        }
        let claims = [
            Column::ints(self.claims.iter().map(|claim| claim.endpoint)),
            Column::ints(self.claims.iter().map(|claim| claim.granted as i64)),
        ];
        let rows = tx.query_each(&PEEK, &claims, &[Param::Time(now)]).await?;
        let (mut claimed_ids, mut interrupted, mut exhausted): (
            Vec<Uuid>,
            Vec<InterruptedAttempt>,
            Vec<FailedDelivery>,
        ) = Default::default();
        for row in &rows {
            let (id, attempt) = (row.uuid("id")?, row.int("attempt")?);
            if let Some(at) = row.opt_time("leased_at")? {
                interrupted.push(InterruptedAttempt { id, attempt, at });
            }
            if row.int("tries_left")? > 0 {
                claimed_ids.push(id);
            } else {
                exhausted.push(FailedDelivery { id, error: INTERRUPTED.into() });
            }
        }
        record_interrupted(tx, &interrupted).await?;
        settle::close_failed(tx, &exhausted).await?;
        let params = [Param::Time(now), Param::Int(DELIVERY_LEASE_MARGIN_MS)];
        let mut rows = tx.query_each(&TAKE, &[Column::uuids(claimed_ids)], &params).await?;
        rows.sort_by_key(|row| row.int("seq").unwrap_or_default());
        let mut deliveries = rows.iter().map(read).collect::<Result<Vec<SealedDelivery>, StoreError>>()?;
        load_principal_rights(tx, &mut deliveries).await?;
        Ok(deliveries)
    }
}

/// Loads the current rights of the principals of deliveries that are runs of triggers.
async fn load_principal_rights(tx: &mut Tx<'_>, deliveries: &mut [SealedDelivery]) -> Result<(), StoreError> {
    let named =
        |(tenant, _, delivery): &SealedDelivery| delivery.run_of.as_ref().map(|(_, name, _)| (*tenant, name.clone()));
    let names: BTreeSet<PrincipalName> = deliveries.iter().filter_map(named).collect();
    if names.is_empty() {
        return Ok(());
    }
    let rights_of = FindPrincipalRights { names }.run(tx).await?;
    for (tenant, _, delivery) in deliveries {
        if let Some((_, name, rights)) = &mut delivery.run_of {
            *rights = rights_of.get(&(*tenant, name.clone())).cloned().unwrap_or_default();
        }
    }
    Ok(())
}

/// Fails the deliveries that have passed `give_up_at`, without another attempt.
async fn give_up(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let rows = tx.query(&PAST, &[Param::Time(tx.now()), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
    let past = rows.iter().map(|row| Ok(FailedDelivery { id: row.uuid("id")?, error: GIVEN_UP.into() }));
    settle::close_failed(tx, &past.collect::<Result<Vec<_>, StoreError>>()?).await
}

/// An attempt whose lease expired without a result.
struct InterruptedAttempt {
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

async fn record_interrupted(tx: &mut Tx<'_>, interrupted: &[InterruptedAttempt]) -> Result<(), StoreError> {
    let columns = [
        Column::uuids(interrupted.iter().map(|interrupted| interrupted.id)),
        Column::ints(interrupted.iter().map(|interrupted| interrupted.attempt)),
        Column::Time(interrupted.iter().map(|interrupted| Some(interrupted.at)).collect()),
    ];
    tx.execute_each(&LOST, &columns, &[Param::Text(INTERRUPTED)]).await.map(|_| ())
}

fn read(row: &Row) -> Result<SealedDelivery, StoreError> {
    let tenant = TenantId(row.int("tenant")?);
    let run_of = match (row.opt_uuid("trigger_id")?, Source::parse(&row.text("source")?)) {
        (Some(_), Some(source)) => Some((source, row.text("principal")?, PrincipalRights::default())),
        _ => None,
    };
    let delivery = ClaimedDelivery {
        id: DeliveryId::new(row.uuid("id")?),
        attempt: row.int("attempt")? as i32,
        endpoint: row.int("endpoint")?,
        url: row.text("url")?,
        method: row.text("method")?,
        headers: from_json(&row.text("headers")?)?,
        secrets: Signing::With(Vec::new()),
        body: row.text("body")?,
        timeout_ms: row.int("timeout_ms")?,
        depth: row.int("depth")? as i32,
        created_at: row.time("created_at")?,
        run_of,
    };
    Ok((tenant, from_json(&row.text("secrets")?)?, delivery))
}
