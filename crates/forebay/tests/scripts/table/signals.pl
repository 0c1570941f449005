#!/usr/bin/perl
print "X-Table: yes\nContent-Type: text/plain\n\n";
print "handler of $_: ", ref $SIG{$_} || $SIG{$_} || 'none', "\n" for qw(USR1 ALRM __WARN__ __DIE__);
if ($ENV{QUERY_STRING} eq 'restore') { delete @SIG{qw(USR1 ALRM __WARN__ __DIE__)} }
else {
    $SIG{USR1} = sub { print "got a signal\n" };
    $SIG{ALRM} = 'IGNORE';
    $SIG{__WARN__} = sub { print "warned: @_" };
    $SIG{__DIE__} = sub { print "dying: @_" };
    kill USR1 => $$;
    warn "once\n";
    eval { die "twice\n" };
}
