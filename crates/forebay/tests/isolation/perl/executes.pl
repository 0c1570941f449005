#!/usr/bin/perl
# Another program takes the place of the process.
exec q{printf 'Content-Type: text/plain\n\nexecuted <%s>\n' "$QUERY_STRING"};
