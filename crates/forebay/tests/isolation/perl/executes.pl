#!/usr/bin/perl
# Another program replaces the script's process (exec).
exec q{printf 'Content-Type: text/plain\n\nexecuted <%s>\n' "$QUERY_STRING"};
