# Prints a row of the table: the figures of `forebay bench`, and descriptors and memory of the server.
# exit 1: requests failed, or the 99th percentile was 100 ms or more
use strict;
use warnings;
use JSON::PP;

my ($file, $attack, $attacked, $asked, $descriptors, $resident) = @ARGV;
open my $in, '<', $file or die "$file: $!\n";
my $result = decode_json(join '', <$in>);
my $requests = $result->{requests};
my $status = $requests->{status};
my $failed = $requests->{failed};
$failed += $status->{$_} for grep { $_ ne '200' } keys %$status;
my $latency = $result->{latency_us};
my $finished = $requests->{completed} + $requests->{failed};
printf "| %s | %s | %s | %d | %d | %.1f | %.1f | %.1f | %d | %d |\n", $attack, $attacked, $asked,
    $finished, $failed, map({ $latency->{$_} / 1000 } qw(p50 p99 max)), $descriptors, $resident;
exit($failed == 0 && $latency->{p99} < 100_000 ? 0 : 1);
