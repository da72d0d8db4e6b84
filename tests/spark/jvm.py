"""What all JVMs of these tests are started with."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""They live for a test or two: compiling thoroughly costs them more CPU than it saves."""
