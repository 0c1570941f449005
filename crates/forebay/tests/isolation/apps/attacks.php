<?php
// The victim and the attacks of a PHP application: the query names one and the nonce.
header('Content-Type: text/plain');
[$attack, $nonce] = explode(',', $_SERVER['QUERY_STRING']);
switch ($attack) {
    case 'background_job':
        exec("(sleep 0.05; printf 'late <$nonce>\\n'; printf 'late <$nonce>\\n' >&3) >/dev/null 2>&1 &");
        proc_open("sleep 0.05; printf 'late <$nonce>\\n'", [], $pipes);
        break;
    case 'kept_handle':
        $file = fopen('php://output', 'w');
        fwrite($file, "handle <$nonce>\n");
        $GLOBALS['kept'] = pfsockopen('udp://127.0.0.1', 9);
        break;
    case 'at_shutdown':
        register_shutdown_function(function () use ($nonce) { echo "end <$nonce>\n"; });
        break;
    case 'finished':
        echo "begun <$nonce>\n";
        function_exists('fastcgi_finish_request') && fastcgi_finish_request();
        usleep(20000);
        echo "late <$nonce>\n";
        exit;
    case 'victim':
        echo "victim <$nonce>\n";
        exit;
}
echo "begun <$nonce>\n";
