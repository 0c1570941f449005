//! Latency histograms in constant memory: an HdrHistogram of microseconds.

use std::fmt;
use std::io::Read;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Histogram of latencies from 1 us to 1 h, with 3 significant digits. A longer latency counts as
/// 1 h.
///
/// [`merge`](Self::merge) adds up the histograms of threads or trials without loss. Percentiles of
/// different histograms must never be averaged.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
}

/// Error for a text that is not an encoded histogram.
#[derive(Debug)]
pub struct LatencyDecodeError(String);

const HIGHEST_US: u64 = 3_600_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;
const COARSE_DIGITS: u8 = 2;

/// Maximum size of an inflated histogram in bytes. A histogram with three digits and 64-bit counts
/// needs less than 500 kB.
const LARGEST_ENCODED: u64 = 4 << 20;
/// First bytes of the V2 compressed encoding (its cookie).
const V2_DEFLATE_COOKIE: [u8; 4] = [0x1c, 0x84, 0x93, 0x14];

impl Latency {
    /// Creates an empty histogram of about 200 kB.
    pub fn new() -> Self {
        Self::with_digits(SIGNIFICANT_DIGITS)
    }

    /// Creates an empty histogram with 2 significant digits, of about 30 kB. Its encoding is small,
    /// so that a long series of histograms can be kept.
    pub fn coarse() -> Self {
        Self::with_digits(COARSE_DIGITS)
    }

    fn with_digits(digits: u8) -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_US, digits)
            .expect("the bounds are constants that the histogram accepts");
        Self { histogram }
    }

    /// Parses the output of [`encode`](Self::encode). The result has as many significant digits as
    /// the encoded histogram, but at least 2.
    ///
    /// # Errors
    /// Fails if the text is not a histogram of at most 3 significant digits.
    pub fn decode(text: &str) -> Result<Self, LatencyDecodeError> {
        let bytes = STANDARD.decode(text).map_err(|e| LatencyDecodeError(e.to_string()))?;
        let bytes = inflate(&bytes)?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|e| LatencyDecodeError(e.to_string()))?;
        // The program that wrote the text may have used other bounds. The sum with an empty
        // histogram has the bounds of this program.
        let mut latency = Self::with_digits(read.sigfig().max(COARSE_DIGITS));
        latency.histogram.add(&read).map_err(|e| LatencyDecodeError(e.to_string()))?;
        Ok(latency)
    }

    /// Adds one latency, rounded to the nearest microsecond.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        let us = latency.as_secs().saturating_mul(1_000_000);
        self.record_us(us.saturating_add(u64::from(latency.subsec_nanos() + 500) / 1000));
    }

    /// Adds one latency given in microseconds.
    #[inline]
    pub fn record_us(&mut self, us: u64) {
        self.histogram.saturating_record(us.min(HIGHEST_US));
    }

    /// Adds all latencies of `other`. The sum keeps the precision of `self`.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("every Latency has the same bounds");
    }

    /// Removes all latencies.
    pub fn clear(&mut self) {
        self.histogram.reset();
    }

    /// Returns the number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns true if nothing was recorded. All figures are then 0.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Returns the arithmetic mean in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.histogram.mean()
    }

    /// Returns the population standard deviation in microseconds.
    pub fn sd_us(&self) -> f64 {
        self.histogram.stdev()
    }

    /// Returns the smallest latency in microseconds, to the histogram's precision.
    pub fn min_us(&self) -> u64 {
        self.histogram.min()
    }

    /// Returns the largest latency in microseconds, to the histogram's precision.
    pub fn max_us(&self) -> u64 {
        self.histogram.max()
    }

    /// Returns the latency in microseconds that `percent` percent (0 to 100) of all latencies do
    /// not exceed.
    pub fn percentile_us(&self, percent: f64) -> u64 {
        // The histogram returns the upper end of a bucket, which can exceed the largest value.
        self.histogram.value_at_percentile(percent).min(self.histogram.max())
    }

    /// Returns the share of all latencies that are from `low` to `high` microseconds. Returns 0
    /// without latencies.
    pub fn share_between(&self, low: f64, high: f64) -> f64 {
        let [low, high] = [low.max(0.0) as u64, high.clamp(0.0, HIGHEST_US as f64) as u64];
        self.histogram.count_between(low, high) as f64 / self.count().max(1) as f64
    }

    /// Returns the number of latencies that rank above the given percentile.
    ///
    /// A percentile with fewer than ten latencies above it is unreliable and should not be printed.
    pub fn samples_beyond(&self, percent: f64) -> u64 {
        // In binary, 100 - 99.9 is slightly less than 0.1. For 10,000 latencies, `floor` would
        // therefore return 9 instead of 10. The sum with 1e-6 prevents this.
        (self.count() as f64 * (100.0 - percent) / 100.0 + 1e-6).floor() as u64
    }

    /// Returns the histogram as base64 of HdrHistogram's V2 compressed encoding, which other
    /// HdrHistogram tools read. The values are in microseconds.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.histogram, &mut bytes)
            .expect("writing to memory does not fail");
        STANDARD.encode(bytes)
    }

    /// Returns the histogram as an HdrHistogram interval log (`.hlog`) with one interval.
    ///
    /// The interval began at `began` and lasted `lasted`. The values are in microseconds, but the
    /// column of maxima is in milliseconds.
    pub fn interval_log(&self, began: SystemTime, lasted: Duration) -> Vec<u8> {
        let mut log = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        builder.add_comment("forebay bench: latencies in microseconds").with_start_time(began);
        builder.with_max_value_divisor(1000.0);
        builder
            .begin_log_with(&mut log, &mut serializer)
            .and_then(|mut writer| {
                writer.write_histogram(&self.histogram, Duration::ZERO, lasted, None).map_err(|e| {
                    // A histogram with these bounds can always be encoded, so the error is an I/O
                    // error.
                    std::io::Error::other(format!("{e:?}"))
                })
            })
            .expect("writing to memory does not fail");
        log
    }
}

/// Inflates the V2 compressed encoding. The lengths in the header are checked first, because the
/// decoder would allocate up to 4 GB for a header with a wrong length.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, LatencyDecodeError> {
    let wrong = |why: &str| LatencyDecodeError(why.to_owned());
    let compressed = bytes.strip_prefix(&V2_DEFLATE_COOKIE).and_then(|rest| rest.get(4..));
    let compressed = compressed.ok_or_else(|| wrong("it does not begin as one"))?;
    let mut inflated = Vec::new();
    let mut decoder = ZlibDecoder::new(compressed).take(LARGEST_ENCODED);
    decoder.read_to_end(&mut inflated).map_err(|e| LatencyDecodeError(e.to_string()))?;
    let number = |at: usize| {
        let bytes = inflated.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).ok_or_else(|| wrong("it is too short"))
    };
    // The header has the cookie, the length of the counts, an offset, the digits, the lowest and
    // highest value and a ratio.
    if number(4)? as usize > inflated.len() || number(12)? > u32::from(SIGNIFICANT_DIGITS) {
        return Err(wrong("its header is damaged"));
    }
    Ok(inflated)
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for LatencyDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an encoded histogram: {}", self.0)
    }
}

impl std::error::Error for LatencyDecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_to(n: u64) -> Latency {
        let mut latency = Latency::new();
        (1..=n).for_each(|us| latency.record_us(us));
        latency
    }

    #[test]
    fn figures_of_one_to_a_thousand() {
        let latency = one_to(1000);
        assert_eq!(latency.count(), 1000);
        assert_eq!(latency.mean_us(), 500.5);
        // The standard deviation of the integers 1..=n is sqrt((n^2 - 1) / 12).
        assert!((latency.sd_us() - 288.674_99).abs() < 0.001, "{}", latency.sd_us());
        assert_eq!((latency.min_us(), latency.max_us()), (1, 1000));
        assert_eq!(latency.percentile_us(50.0), 500);
        assert_eq!(latency.percentile_us(99.0), 990);
        assert_eq!(latency.percentile_us(100.0), 1000);
        assert_eq!(latency.samples_beyond(99.0), 10);
        assert_eq!(latency.samples_beyond(99.9), 1);
    }

    #[test]
    fn keeps_three_significant_digits() {
        let mut latency = Latency::new();
        latency.record(Duration::from_millis(123_456));
        let error = latency.percentile_us(50.0).abs_diff(123_456_000);
        assert!(error <= 123_456, "{error}");
    }

    #[test]
    fn too_long_counts_as_one_hour() {
        let mut latency = Latency::new();
        latency.record(Duration::MAX);
        assert!(latency.max_us().abs_diff(HIGHEST_US) < HIGHEST_US / 1000);
    }

    #[test]
    fn rounds_to_the_nearest_microsecond() {
        let mut latency = Latency::new();
        latency.record(Duration::from_nanos(1499));
        latency.record(Duration::from_nanos(1500));
        assert_eq!((latency.min_us(), latency.max_us()), (1, 2));
    }

    #[test]
    fn merge_equals_recording_into_one() {
        let mut left = one_to(500);
        let mut right = Latency::new();
        (501..=1000).for_each(|us| right.record_us(us));
        left.merge(&right);
        assert_eq!(left.histogram, one_to(1000).histogram);
    }

    #[test]
    fn encoding_round_trips() {
        let latency = one_to(1000);
        assert_eq!(Latency::decode(&latency.encode()).unwrap().histogram, latency.histogram);
        assert!(latency.encode().starts_with("HISTFAAA"), "the V2 deflate cookie in base64");
        assert!(Latency::decode("no histogram").is_err());
        assert!(Latency::decode("SElTVA==").is_err());
    }

    #[test]
    fn coarse_histograms_merge_exactly_however_they_were_encoded() {
        let (mut whole, mut sum) = (Latency::coarse(), Latency::coarse());
        for part in 0..5 {
            let mut fine = Latency::new();
            (1..2000).for_each(|n| fine.record_us(n * n * (part + 1)));
            whole.merge(&fine);
            let mut coarse = Latency::coarse();
            coarse.merge(&fine);
            sum.merge(&Latency::decode(&coarse.encode()).unwrap());
        }
        assert_eq!(whole.histogram, sum.histogram);
        assert_eq!(whole.count(), 5 * 1999);
        sum.clear();
        assert!(sum.is_empty());
    }

    #[test]
    fn a_header_that_lies_is_refused() {
        let encoded = STANDARD.decode(one_to(10).encode()).unwrap();
        let mut plain = Vec::new();
        ZlibDecoder::new(&encoded[8..]).read_to_end(&mut plain).unwrap();
        for (at, value) in [(4, u32::MAX), (12, 5), (12, 99), (8, 1)] {
            let mut wrong = plain.clone();
            wrong[at..at + 4].copy_from_slice(&value.to_be_bytes());
            let mut deflated = Vec::new();
            flate2::read::ZlibEncoder::new(&wrong[..], flate2::Compression::fast())
                .read_to_end(&mut deflated)
                .unwrap();
            let length = (deflated.len() as u32).to_be_bytes();
            let text = STANDARD.encode([&V2_DEFLATE_COOKIE[..], &length, &deflated].concat());
            assert!(Latency::decode(&text).is_err(), "{at} {value}");
        }
        let mut zeros = flate2::read::ZlibEncoder::new(
            std::io::repeat(0).take(50 << 20),
            flate2::Compression::best(),
        );
        let mut bomb = Vec::new();
        zeros.read_to_end(&mut bomb).unwrap();
        let text = STANDARD.encode([&V2_DEFLATE_COOKIE[..], &[0; 4], &bomb].concat());
        assert!(Latency::decode(&text).is_err());
    }

    #[test]
    fn interval_log_has_one_interval() {
        let log = one_to(10).interval_log(SystemTime::UNIX_EPOCH, Duration::from_secs(2));
        let log = String::from_utf8(log).unwrap();
        let intervals: Vec<_> =
            log.lines().filter(|l| !l.starts_with('#') && !l.starts_with('"')).collect();
        assert_eq!(intervals.len(), 1, "{log}");
        assert!(intervals[0].starts_with("0.000,2.000,0.010,HISTFAAA"), "{log}");
    }

    #[test]
    fn empty_is_all_zero() {
        let latency = Latency::new();
        assert!(latency.is_empty());
        assert_eq!(latency.percentile_us(99.0), 0);
        assert_eq!(latency.mean_us(), 0.0);
    }
}
