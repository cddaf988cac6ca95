"""All orders of a program that matter: schedules, how their runs are judged, and replays."""
