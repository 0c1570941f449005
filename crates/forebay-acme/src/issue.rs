//! Obtains one certificate: opens the account, places the order, answers the challenges, and sends
//! the certificate request.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use forebay_conf::{self as conf, Acme, AcmeChallenge};
use forebay_net::log::ErrorLog;
use forebay_net::tls::{Challenge, Challenges};
use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, AuthorizedIdentifier, CertificateIdentifier,
    ChallengeType, Error, ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus,
    RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, Der, PrivatePkcs8KeyDer};
use x509_parser::extensions::ParsedExtension;

use crate::Stopped;
use crate::dns_records::DnsRecords;
use crate::schedule::Window;
use crate::shared::SharedState;
use crate::state::{self, Issued, Stored};

/// Time limit for obtaining one certificate, from the request for the account to the download, with
/// all retries. `dns_wait` of the configuration extends it.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of times that an order is retried immediately, if the authority rejects its nonce
/// (`badNonce`).
const STALE: u32 = 3;

/// Time limit for polling the state of an order.
const POLLS: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// Time limit for one question about the time of a renewal.
const QUESTION_LIMIT: Duration = Duration::from_secs(30);

/// Obtains a certificate from the authority, which may replace the certificate `replaces`. The error
/// is the reason of the failure, as text for the log. If the server stops, returns an error early,
/// but still removes the DNS records.
pub async fn issue(
    acme: &Acme,
    (challenge, replaces): (AcmeChallenge, Option<&Stored>),
    (challenges, shared): (&Challenges, Option<&SharedState>),
    (errors, stopped): (&ErrorLog, &mut Stopped),
) -> Result<Issued, String> {
    let mut records = DnsRecords::new(&acme.dns_hook);
    let mut answered = Vec::new();
    let whole = async {
        let mut stale = 0;
        loop {
            let (records, answered) = (&mut records, &mut answered);
            let mut proof = Proof { challenge, replaces, challenges, shared, records, answered };
            let outcome = one_order(acme, &mut proof).await;
            match outcome {
                Err(failure) if failure.is_stale && stale < STALE => stale += 1,
                outcome => return outcome.map_err(|failure| failure.why),
            }
        }
    };
    let within = tokio::time::timeout(PATIENCE + acme.dns_wait, whole);
    // After a stop, this function still removes the records, so the caller must not drop the
    // future.
    let within = tokio::select! {
        within = within => within,
        _ = stopped.wait_for(|stop| *stop) => Ok(Err("the server stops".to_owned())),
    };
    challenges.forget(&answered);
    for why in records.remove_all().await {
        errors.warn(&format!("ACME: {}: a DNS record stays: {why}", acme.names.join(", ")));
    }
    within.unwrap_or_else(|_| Err(format!("{} took too long", acme.directory)))
}

/// Data for the proof that this server controls the names.
struct Proof<'a> {
    challenge: AcmeChallenge,
    /// The certificate that the new one replaces.
    replaces: Option<&'a Stored>,
    challenges: &'a Challenges,
    /// The state that machines share: the account, and the answers to challenges.
    shared: Option<&'a SharedState>,
    /// Records that were created, for dns-01.
    records: &'a mut DnsRecords,
    /// Challenges with an answer in `challenges`. The answers are removed after the order.
    answered: &'a mut Vec<Challenge>,
}

/// Reason why an order failed.
struct OrderFailure {
    why: String,
    /// The authority rejected the nonce as too old. This failure says nothing about the names, so
    /// the order is retried. The client library has already retried with three fresh nonces.
    is_stale: bool,
}

impl From<String> for OrderFailure {
    fn from(why: String) -> Self {
        Self { why, is_stale: false }
    }
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> Self {
        Self { why: whole(&error), is_stale: is_problem(&error, "badNonce") }
    }
}

async fn one_order(acme: &Acme, proof: &mut Proof<'_>) -> Result<Issued, OrderFailure> {
    let mut order = new_order(acme, proof.shared, proof.replaces).await?;
    fulfil(&mut order, acme, proof).await
}

/// Creates an order with the saved account. Creates a new account first if none is saved, or if the
/// authority does not know the saved account.
async fn new_order(
    acme: &Acme,
    shared: Option<&SharedState>,
    replaces: Option<&Stored>,
) -> Result<Order, OrderFailure> {
    let names: Vec<_> = acme.names.iter().map(|name| identifier(name)).collect();
    let mut wanted = NewOrder::new(&names);
    if let Some(profile) = &acme.profile {
        wanted = wanted.profile(profile);
    }
    if let Some(account) = kept_account(acme, shared).await? {
        has_profile(acme, &account)?;
        let replaced = replaces.and_then(certificate_id);
        let outcome = match replaced {
            None => account.new_order(&wanted).await,
            Some(id) => {
                let replacing = NewOrder::new(&names).replaces(id);
                let replacing = match &acme.profile {
                    Some(profile) => replacing.profile(profile),
                    None => replacing,
                };
                match account.new_order(&replacing).await {
                    Ok(order) => return Ok(order),
                    // Only the order counts. What it replaces gives it precedence at the limits of the
                    // authority, which may not know the certificate, or may know it as replaced.
                    Err(error) if has_own_reason(&error) => Err(error),
                    Err(_) => account.new_order(&wanted).await,
                }
            }
        };
        match outcome {
            // Create a new account below: the authority has deleted the saved account, or the
            // configured directory URL now names another authority.
            Err(error) if is_problem(&error, "accountDoesNotExist") => {}
            outcome => return Ok(outcome?),
        }
    }
    let account = new_account(acme, shared).await?;
    has_profile(acme, &account)?;
    Ok(account.new_order(&wanted).await?)
}

/// Fails if the authority does not have the profile, with the profiles that it has.
fn has_profile(acme: &Acme, account: &Account) -> Result<(), String> {
    let Some(profile) = &acme.profile else { return Ok(()) };
    let mut all: Vec<_> = account.profiles().map(|profile| profile.name).collect();
    if all.contains(&&**profile) {
        return Ok(());
    }
    all.sort_unstable();
    let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let directory = &acme.directory;
    Err(format!("{directory} has no profile {profile}: set `profile` to one of its own ({all})"))
}

/// Returns true if an order fails for a reason that has nothing to do with the certificate that it
/// replaces.
fn has_own_reason(error: &Error) -> bool {
    ["badNonce", "accountDoesNotExist", "rateLimited", "rejectedIdentifier", "userActionRequired"]
        .iter()
        .any(|name| is_problem(error, name))
}

fn identifier(name: &str) -> Identifier {
    match name.parse() {
        Ok(address) => Identifier::Ip(address),
        Err(_) => Identifier::Dns(name.to_owned()),
    }
}

/// Returns the name of a certificate at its authority (RFC 9773, section 4.1). `None` if the
/// certificate has no identifier of its authority's key.
fn certificate_id(stored: &Stored) -> Option<CertificateIdentifier<'static>> {
    let first = CertificateDer::from_pem_slice(stored.chain.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&first).ok()?;
    let key =
        certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(key) => key.key_identifier.as_ref(),
            _ => None,
        })?;
    let serial = Der::from_slice(certificate.tbs_certificate.raw_serial());
    Some(CertificateIdentifier::new(Der::from_slice(key.0), serial).into_owned())
}

/// Asks the authority when a certificate should be renewed. Returns the window, and the pause until
/// the next question; `None` if the authority has no such information.
///
/// # Errors
/// Returns a text for the log.
pub async fn renewal_window(
    acme: &Acme,
    shared: Option<&SharedState>,
    stored: &Stored,
) -> Result<Option<(Window, Duration)>, String> {
    let Some(id) = certificate_id(stored) else { return Ok(None) };
    let ask = async {
        let Some(account) = kept_account(acme, shared).await? else { return Ok(None) };
        match account.renewal_info(&id).await {
            Ok((info, pause)) => {
                let window = info.suggested_window;
                let window =
                    Window { start: SystemTime::from(window.start), end: window.end.into() };
                Ok(Some((window, pause)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(OrderFailure::from(error)),
        }
    };
    match tokio::time::timeout(QUESTION_LIMIT, ask).await {
        Ok(outcome) => outcome.map_err(|failure| failure.why),
        Err(_) => Err(format!("no answer within {} s", QUESTION_LIMIT.as_secs())),
    }
}

/// Returns true if the authority answered with this type of problem (RFC 8555 section 6.7).
fn is_problem(error: &Error, name: &str) -> bool {
    let Error::Api(problem) = error else { return false };
    let kind =
        problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    kind == Some(name)
}

fn builder(acme: &Acme) -> Result<AccountBuilder, OrderFailure> {
    let builder = match &acme.ca {
        Some(ca) => Account::builder_with_root(ca),
        None => Account::builder(),
    };
    builder.map_err(|error| unreachable(acme, error))
}

fn unreachable(acme: &Acme, error: Error) -> OrderFailure {
    let failure = OrderFailure::from(error);
    OrderFailure { why: format!("{}: {}", acme.directory, failure.why), ..failure }
}

async fn kept_account(
    acme: &Acme,
    shared: Option<&SharedState>,
) -> Result<Option<Account>, OrderFailure> {
    let kept = match shared {
        Some(shared) => shared.account(acme).await?,
        None => None,
    };
    let kept = kept.or_else(|| state::account(acme));
    let kept = kept.and_then(|kept| serde_json::from_str(&kept).ok());
    let Some(credentials) = kept else { return Ok(None) };
    let account = builder(acme)?.from_credentials(credentials).await;
    account.map(Some).map_err(|error| unreachable(acme, error))
}

async fn new_account(acme: &Acme, shared: Option<&SharedState>) -> Result<Account, OrderFailure> {
    let contact: Vec<_> = acme.email.iter().map(|email| format!("mailto:{email}")).collect();
    let contact: Vec<_> = contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let external = acme.external_account.as_ref().map(external_account).transpose()?;
    let created = builder(acme)?.create(&new, acme.directory.clone(), external.as_ref()).await;
    let (account, credentials) = created.map_err(|error| unreachable(acme, error))?;
    let text = serde_json::to_string(&credentials).map_err(|error| error.to_string())?;
    match shared {
        Some(shared) => shared.save_account(acme, text).await?,
        None => state::save_account(acme, &text)?,
    }
    Ok(account)
}

fn external_account(of: &conf::ExternalAccount) -> Result<ExternalAccountKey, String> {
    let key = BASE64_URL_SAFE_NO_PAD.decode(of.mac_key.as_bytes());
    let key = key.map_err(|_| "`mac_key` is not base64url".to_owned())?;
    Ok(ExternalAccountKey::new(of.key_id.clone(), &key))
}

/// Proves control of the names and obtains the certificate.
async fn fulfil(
    order: &mut Order,
    acme: &Acme,
    proof: &mut Proof<'_>,
) -> Result<Issued, OrderFailure> {
    if proof.challenge == AcmeChallenge::Dns01 {
        create_records(order, proof.records).await?;
        tokio::time::sleep(acme.dns_wait).await;
    }
    prove(order, proof).await?;
    let status = order.poll_ready(&POLLS).await?;
    if !matches!(status, OrderStatus::Ready | OrderStatus::Valid) {
        return Err(refusal(order).await.into());
    }
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let mut params =
        CertificateParams::new(acme.names.clone()).map_err(|error| error.to_string())?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(|error| error.to_string())?;
    order.finalize_csr(request.der()).await?;
    let chain = order.poll_certificate(&POLLS).await?;
    Ok(Issued { chain, key: key.serialize_pem() })
}

/// Creates the TXT record of each name. All records must exist before the authority looks up the
/// first one. For example, `example.org` and `*.example.org` need two records with the same name.
/// After a lookup that is too early, name servers would cache an answer with only one of the two.
async fn create_records(order: &mut Order, records: &mut DnsRecords) -> Result<(), OrderFailure> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        let challenge = authorization
            .challenge(ChallengeType::Dns01)
            .ok_or_else(|| lacking(AcmeChallenge::Dns01))?;
        let value = challenge.key_authorization().dns_value();
        let name = dns_name(challenge.identifier())?.to_owned();
        records.create(&name, value).await?;
    }
    Ok(())
}

fn lacking(challenge: AcmeChallenge) -> String {
    format!("the authority does not offer the challenge {challenge:?}")
}

/// Returns the DNS name of an identifier, without the `*.` of a wildcard. Fails if the identifier
/// is not a DNS name.
fn dns_name<'a>(of: &AuthorizedIdentifier<'a>) -> Result<&'a str, String> {
    match of.identifier {
        Identifier::Dns(name) => Ok(name),
        _ => Err("the authority asked for something that is not a DNS name".to_owned()),
    }
}

/// Answers the challenge of each name that has no valid authorization. Then reports to the
/// authority that the answer is ready. [`create_records`] has already answered DNS challenges.
/// Fails if the authority does not offer the challenge, or has rejected an authorization.
async fn prove(order: &mut Order, proof: &mut Proof<'_>) -> Result<(), OrderFailure> {
    let by = proof.challenge;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => return Err(format!("an authorization is {status:?}").into()),
        }
        let kind = match by {
            AcmeChallenge::Http01 => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            AcmeChallenge::Dns01 => ChallengeType::Dns01,
        };
        let mut challenge = authorization.challenge(kind).ok_or_else(|| lacking(by))?;
        let key = challenge.key_authorization();
        match by {
            AcmeChallenge::Http01 => {
                let reply = key.as_str().to_owned();
                if let Some(shared) = proof.shared {
                    shared.answer_request(&challenge.token, reply.clone()).await?;
                }
                proof.answered.push(Challenge::Token(challenge.token.clone()));
                proof.challenges.answer_request(&challenge.token, reply);
            }
            AcmeChallenge::TlsAlpn01 => {
                let identifier = challenge.identifier();
                let digest = key.digest();
                match identifier.identifier {
                    // The authority names the address as its reverse name, because SNI has no
                    // addresses (RFC 8738, section 6).
                    Identifier::Ip(address) => {
                        let names = (&*address.to_string(), &*reverse_name(*address));
                        show(proof, names, digest.as_ref()).await?;
                    }
                    _ => {
                        let name = dns_name(identifier)?;
                        show(proof, (name, name), digest.as_ref()).await?;
                    }
                }
            }
            AcmeChallenge::Dns01 => {} // `create_records` has answered it
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Returns the name of an address in the DNS, such as `1.2.0.192.in-addr.arpa`.
fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let bytes = address.octets().into_iter().rev();
            let digits: String =
                bytes.map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4)).collect();
            format!("{digits}ip6.arpa")
        }
    }
}

/// Answers the challenge tls-alpn-01 for `name` (RFC 8737, section 3). When the authority connects
/// and names `server_name`, the server then presents a self-signed certificate that contains
/// `digest`.
async fn show(
    proof: &mut Proof<'_>,
    (name, server_name): (&str, &str),
    digest: &[u8],
) -> Result<(), String> {
    let failed = |error: rcgen::Error| error.to_string();
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(failed)?;
    if let Some(shared) = proof.shared {
        shared.answer_handshake(server_name, certificate.pem(), key.serialize_pem()).await?;
    }
    proof.answered.push(Challenge::Name(server_name.to_ascii_lowercase()));
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let certificate = certificate.der().clone();
    let shown = proof.challenges.answer_handshake(server_name, certificate, key.into());
    shown.map_err(|error| error.to_string())
}

/// Returns the reason why the authority rejected the order. The reason is the error of the first
/// failed challenge, or a general text if no challenge has an error.
async fn refusal(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        for challenge in &authorization.challenges {
            if let Some(problem) = &challenge.error {
                let name = authorization.identifier();
                return format!("{name}: {problem}");
            }
        }
    }
    "the authority rejected the order".to_owned()
}

/// Formats an error with its causes. Leaves out a cause whose text the error already contains.
fn whole(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_asks_for_an_address_by_its_reverse_name() {
        let name = |address: &str| reverse_name(address.parse().unwrap());
        assert_eq!(name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        assert_eq!(
            name("2001:db8::567:89ab"),
            "b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"
        );
        assert_eq!(identifier("2001:db8::1"), Identifier::Ip("2001:db8::1".parse().unwrap()));
        assert_eq!(identifier("1.example"), Identifier::Dns("1.example".to_owned()));
    }
}
