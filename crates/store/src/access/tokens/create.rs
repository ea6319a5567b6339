//! Creates a token. The response is the only place where its text is visible.

use domain::limits::TOKENS_PER_TENANT;
use domain::{Access, Label, Name, Right, Role, TenantId, Time, TokenId, TokenText};
use serde_json::json;

use crate::access::tenants;
use crate::access::tokens::authenticate::MAX_CACHE_AGE;
use crate::access::tokens::{Hash, Serves, Token, hash, list, move_version, serves_to_json};
use crate::db::clock::{fill_random, new_uuid};
use crate::db::codec::to_json;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

/// A token to create. The caller has validated everything that does not require the database.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub name: Label,
    /// The token's tenant (default: the issuer's tenant).
    pub tenant: Option<Name>,
    pub access: Access,
    pub serves: Option<NewServes>,
    pub expires_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewServes {
    Everyone,
    Tenants(Vec<Name>),
}

/// Who creates the token.
#[derive(Clone, Debug)]
pub enum TokenIssuer {
    /// A local administrator with direct access to the database.
    Machine,
    /// An unauthenticated caller of a server that has no tokens yet.
    Local,
    Token(TokenId),
}

#[derive(Debug)]
pub enum TokenCreated {
    Created(Box<Token>, TokenText),
    NoSuchTenant(Name),
    /// The token would have more rights, or live longer, than the token that creates it.
    ExceedsParent(&'static str),
    /// The creating token was revoked or has expired in the meantime.
    ParentEnded,
    /// An unauthenticated caller tried to create a token, but another caller created the first token in the meantime.
    NotFirstToken,
    /// `serves` is set on a token that cannot have it.
    InvalidServes(&'static str),
    TooMany,
}

impl Store {
    /// Creates a token. Once this returns, every node accepts it. After the first token, every node also rejects requests
    /// without a token.
    pub async fn create_token(&self, issuer: TokenIssuer, token: NewToken) -> Result<TokenCreated, StoreError> {
        let text = random_token();
        let created = self.insert_token(issuer, token, &text).await?;
        Ok(match created {
            Ok(token) => TokenCreated::Created(token, text),
            Err(refusal) => refusal,
        })
    }

    /// Creates an admin token of the default tenant with a given text, if the installation never had a token. Returns
    /// whether it did. `windlass serve --bootstrap-token-file` calls this on every node.
    pub async fn bootstrap_token(&self, text: &TokenText) -> Result<bool, StoreError> {
        let token = NewToken {
            name: Label::new("bootstrap").expect("a valid label"),
            tenant: None,
            access: Access::full(),
            serves: None,
            expires_at: None,
        };
        Ok(self.insert_token(TokenIssuer::Local, token, text).await?.is_ok())
    }

    async fn insert_token(
        &self,
        issuer: TokenIssuer,
        token: NewToken,
        text: &TokenText,
    ) -> Result<Result<Box<Token>, TokenCreated>, StoreError> {
        let (created, first) = self.write(CreateToken { issuer, token, hash: hash(text) }).await?;
        self.tokens().invalidate();
        if first {
            tokio::time::sleep(MAX_CACHE_AGE).await;
        }
        Ok(created)
    }
}

/// A token from the random number generator of the operating system.
pub fn random_token() -> TokenText {
    TokenText::from_random(|| {
        let mut byte = [0];
        fill_random(&mut byte);
        byte[0]
    })
}

struct CreateToken {
    issuer: TokenIssuer,
    token: NewToken,
    hash: Hash,
}

const COUNT: Sql = Sql::both(&["select count(*) as live_tokens from tokens
     where tenant = $1 and revoked_at is null and (expires_at is null or expires_at > $2)"]);
const INSERT: Sql = Sql::both(&["insert into tokens
         (id, tenant, hash, name, role, rights, queues, serves, parent, created_by, created_at, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"]);

impl Operation for CreateToken {
    /// The flag is true for the first token of the installation.
    type Output = (Result<Box<Token>, TokenCreated>, bool);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let parent = match self.parent(tx).await? {
            Ok(parent) => parent,
            Err(refusal) => return Ok((Err(refusal), false)),
        };
        let (tenant, serves) = match self.resolve_tenant(tx, parent.as_ref()).await? {
            Ok(resolved) => resolved,
            Err(refusal) => return Ok((Err(refusal), false)),
        };
        let now = tx.now();
        let live_tokens = tx.query_opt(&COUNT, &[Param::Int(tenant.0), Param::Time(now)]).await?;
        if live_tokens.map(|row| row.int("live_tokens")).transpose()?.unwrap_or(0) as usize >= TOKENS_PER_TENANT {
            return Ok((Err(TokenCreated::TooMany), false));
        }
        let version = move_version(tx).await?;
        if matches!(self.issuer, TokenIssuer::Local) && version != 1 {
            return Ok((Err(TokenCreated::NotFirstToken), false));
        }
        let id = TokenId::new(new_uuid(now));
        self.insert(tx, id, tenant, serves.as_ref(), parent.as_ref()).await?;
        let created = list::find(tx, id).await?.ok_or_else(|| StoreError::unexpected("a token that was just made"))?;
        let detail =
            json!({"token": &*created.name, "id": id.uuid(), "role": created.access.role.as_str()}).to_string();
        timeline::write(tx, &[Entry::by(tenant, &created.created_by, "token_created", detail)]).await?;
        Ok((Ok(Box::new(created)), version == 1))
    }
}

impl CreateToken {
    /// Loads the creating token and checks that it may create this one.
    async fn parent(&self, tx: &mut Tx<'_>) -> Result<Result<Option<Token>, TokenCreated>, StoreError> {
        let TokenIssuer::Token(id) = self.issuer else { return Ok(Ok(None)) };
        let Some(parent) = list::find(tx, id).await?.filter(|parent| parent.is_alive(tx.now())) else {
            return Ok(Err(TokenCreated::ParentEnded));
        };
        let within = self.token.access.is_within(&parent.access) && parent.access.has(Right::ManageTokens);
        if !within {
            return Ok(Err(TokenCreated::ExceedsParent(
                "the new token cannot have more rights than the token that creates it",
            )));
        }
        let outlives = match (self.token.expires_at, parent.expires_at) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(own), Some(last)) => own > last,
        };
        if outlives {
            return Ok(Err(TokenCreated::ExceedsParent(
                "the new token cannot expire later than the token that creates it",
            )));
        }
        Ok(Ok(Some(parent)))
    }

    /// Resolves the token's tenant and the tenants that it serves. Only the built-in tenant and the local administrator
    /// can name another tenant. For everyone else other tenants do not exist.
    async fn resolve_tenant(
        &self,
        tx: &mut Tx<'_>,
        parent: Option<&Token>,
    ) -> Result<Result<(TenantId, Option<Serves>), TokenCreated>, StoreError> {
        let own = match (&self.issuer, parent) {
            (TokenIssuer::Token(_), Some(parent)) => parent.tenant,
            _ => TenantId::DEFAULT,
        };
        let can_name_any_tenant = matches!(self.issuer, TokenIssuer::Machine) || own == TenantId::SYSTEM;
        let tenant = match &self.token.tenant {
            None => own,
            Some(name) => match tenants::find(tx, name).await?.filter(|found| can_name_any_tenant || *found == own) {
                Some(tenant) => tenant,
                None => return Ok(Err(TokenCreated::NoSuchTenant(name.clone()))),
            },
        };
        let Some(serves) = &self.token.serves else { return Ok(Ok((tenant, None))) };
        if tenant != TenantId::SYSTEM || self.token.access.role != Role::Worker {
            let detail = "is only valid for worker tokens of the tenant `system`";
            return Ok(Err(TokenCreated::InvalidServes(detail)));
        }
        let names = match serves {
            NewServes::Everyone => return Ok(Ok((tenant, Some(Serves::Everyone)))),
            NewServes::Tenants(names) => names,
        };
        let mut served = Vec::with_capacity(names.len());
        for name in names {
            match tenants::find(tx, name).await? {
                Some(found) => served.push((found, name.clone())),
                None => return Ok(Err(TokenCreated::NoSuchTenant(name.clone()))),
            }
        }
        Ok(Ok((tenant, Some(Serves::Tenants(served)))))
    }

    async fn insert(
        &self,
        tx: &mut Tx<'_>,
        id: TokenId,
        tenant: TenantId,
        serves: Option<&Serves>,
        parent: Option<&Token>,
    ) -> Result<(), StoreError> {
        let NewToken { name, access, expires_at, .. } = &self.token;
        let rights = to_json(&access.granted.iter().map(Right::as_str).collect::<Vec<_>>());
        let queues = access.queues.as_ref();
        let queues = queues.map(|queues| to_json(&queues.iter().map(Name::as_str).collect::<Vec<_>>()));
        let serves = serves.map(serves_to_json);
        let by = match (&self.issuer, parent) {
            (TokenIssuer::Machine, _) => "machine",
            (_, Some(parent)) => &parent.name,
            (_, None) => "local",
        };
        let params = [
            Param::Uuid(id.uuid()),
            Param::Int(tenant.0),
            Param::Blob(&self.hash),
            Param::Text(name.as_str()),
            Param::Text(access.role.as_str()),
            Param::Json(&rights),
            Param::json(queues.as_deref()),
            Param::json(serves.as_deref()),
            Param::uuid(parent.map(|parent| parent.id.uuid())),
            Param::Text(by),
            Param::Time(tx.now()),
            Param::time(*expires_at),
        ];
        tx.execute(&INSERT, &params).await.map(|_| ())
    }
}
