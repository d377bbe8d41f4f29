"""Little poems, haikus and riddles."""
# ruff: noqa: E501 - a wording stays on its line

from random import Random

from .grammar import article, entries, expand, say
from .turn import Memory, Turn
from .words import ADJECTIVES, ANIMALS, THINGS

# Rhymed pairs of lines by theme; a poem is two pairs. `<x>` is the word asked for.
COUPLETS: dict[str, tuple[str, ...]] = {
    "sea": ("The sea is wide, the sea is deep,/it {rocks|sings} the little boats to sleep.", "The waves come in, the waves go out,/{a gull flies by with half a shout|they know what they are all about}.", "I {found|kept} a shell upon the sand,/it held the ocean in my hand.", "The tide will turn, the wind will blow,/and {where it goes the fishes know|home again the boats will go}."),
    "moon": ("The moon climbs up above the hill,/the {fields are dark|barn is dark}, the air is still.", "She {pours|lays} her silver on the stream/and {paints|lights} the edges of a dream.", "O moon, you {round and patient light|pale and quiet light},/please {keep an eye on|watch above} us all tonight.", "The owl looks up, the owl looks down,/the moon walks softly through the town."),
    "night": ("The night comes in on quiet feet/and {hangs its stars|lights a lamp} above the street.", "The windows {glow|close}, the voices end,/the dark is {like an old, old|only some quiet} friend.", "Sleep well, small house, sleep well, small tree,/{the stars will watch for you and me|the night is deep as any sea}."),
    "rain": ("The rain is {tapping|drumming} on the pane,/{it tells a story, then again|a little song, and then again}.", "It fills the {puddle|barrel} to the brim/{and teaches every leaf to swim|where happy sparrows come to swim}.", "And when the clouds have all gone by/a rainbow {bends|leans} across the sky."),
    "spring": ("The snow has gone, the {buds|fields} are green,/the {brightest|softest} light I have ever seen.", "A robin {sings|calls} upon the gate:/wake up, wake up, it is getting late!", "The {seeds|bulbs} push up through earth and stone,/{and no one has to wake alone|each one a secret of its own}."),
    "summer": ("The summer day is {long|slow} and bright,/{the swallows dance until the night|the evening fills with golden light}.", "The bees are {humming|busy} in the clover,/I hope that this is never over.", "A {melon|plum}, a shady tree, a book,/and {bare feet dipping in the|a frog who watches from the} brook."),
    "autumn": ("The leaves are {red|brown}, the leaves are gold,/the {mornings|evenings} now are clear and cold.", "The wind {takes|shakes} the apples from the tree/and {rolls|drops} the best one down to me.", "The geese {fly|go} south, the fields are bare,/there's {smoke|mist} and memory in the air."),
    "winter": ("The snow {falls down|comes down} without a sound/and {puts a blanket on|lays a pillow on} the ground.", "A candle {burns|waits} behind the glass/to {watch|see} the frosty hours pass.", "So {take|bring} a cup of something warm/and sit with me until the {morn|storm}."),
    "love": ("Love is a lamp that someone lit,/{and no one has to carry it|come in and warm yourself a bit}.", "It {asks|needs} for little, gives a lot:/a {hand to hold|word, a smile}, a tea that's hot.", "It {waits|stays} with you through rain and sun/and {says|knows} that two are more than one."),
    "star": ("A star {looked down|fell down} and saw the sea/and {thought|said}: that {light down there is|shining thing is} me.", "So far away, so {small|bright} and clear,/{you say to us that night is here|and still it seems to me so near}.", "I {made|had} a wish, I {won't|will not} tell it you,/but {maybe|some day} it will still come true."),
    "wind": ("The wind {runs|came} laughing down the lane/and {rattles every windowpane|turns the golden weather vane}.", "It {stole|took} my hat, it stole my kite,/{it whistled half the stormy night|and danced with both till it was night}.", "O wind, where do you {go|sleep}, I say?/It {laughs|hums} a tune and runs away."),
    "friendship": ("A friend is {someone|one} who stays to hear/the {quiet|little} things you hold so dear.", "You {share|split} the bread, you share the load,/you {walk|sing} together down the road.", "And when the {way|path} is dark and long/{a friend will start a little song|a friend will hum an easy song}."),
    "home": ("A {door|lamp}, a chair, a window's light,/a {kettle|fire} singing in the night.", "The road may {run|lead} both near and far,/but home is where your {slippers|loved ones} are.", "I {hang|put} my coat upon the hook/and {read|take} again my favourite book."),
    "tree": ("The old tree {stands|waits} beside the wall,/the {kindest|oldest} neighbour of us all.", "Its roots go down, its leaves go high,/it {holds|lifts} the birds up to the sky.", "A hundred {years|winters} it has stood,/and {all of them, it says, were|every one, it says, was} good."),
    "cat": ("The cat {sits|sleeps} on the windowsill,/{the world may turn, but she is still|the only thing that's really still}.", "She {dreams|thinks} of mice, she dreams of cream,/and {purrs|twitches} softly in her dream.", "You call her name; she {will not|does not} come,/until you {bring her dinner home|drop a single crumb}."),
    "model": ("A little model, small and {quick|bright},/{will guess the words, then pick and pick|will guess the words from left to right}.", "A bigger one then {reads|checks} the lot/and {says which word|tells which one} is right, which not.", "So two together {write|make} the line:/the {speed|guess} is yours, the {word|line} is mine."),
    "sun": ("The sun gets up and {stretches wide|looks inside},/and {shadows|sleepy cats} run off to hide.", "It {warms|gilds} the roof, it warms the stone,/it {lets no flower|leaves no sparrow} feel alone.", "At evening, red and {round|slow} and deep,/it pulls the hills up and goes to sleep."),
    "river": ("The river {hums|runs} and does not stay,/it {carries|takes} the leaves and sticks away.", "It {knows|passes} the mill, it knows the town,/it {sings|laughs} the mountains slowly down.", "And {at the end|one fine day} it meets the sea/and {says|sighs}: how {big|wide} this world can be!"),
}  # fmt: skip
ANY: tuple[str, ...] = (
    "I {saw|met} <a:x> the other day,/it {smiled at me|looked at me} and went away.",
    "O little <x>, so {fine|small} and {dear|near},/I am so glad to {see|find} you here.",
    "There was <a:x> upon the stair,/{I blinked|I turned}, and it was {still|not} there.",
    "If I were just <a:x> like you,/{I would not know what else to|I wonder what I then would} do.",
    "The moon {came out|looked down}, the night was {clear|near},/and the <x> was all that I held dear.",
    "Some {dream|sing} of gold, some dream of fame,/<a:x> is {happy|special} all the same.",
    "So {raise|lift} a cup and {sing|hum} a song:/<a:x> can never be quite wrong.",
    "In {rain|snow} and wind, in sun and {snow|cold},/the <x> has a heart of {gold, I know|purest gold}.",
)
# Lines of five, seven and five syllables by theme.
HAIKUS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "rain": (("Rain on the window", "Soft rain in the night", "Grey clouds, silver rain"), ("each drop tells a small story", "the garden drinks and is glad", "a snail goes out for a walk"), ("then the sun comes back.", "the whole world smells new.", "nobody hurries.")),
    "autumn": (("A red leaf falls down", "Cold wind in the trees", "Mist over the field"), ("the pond holds the evening sky", "geese are calling far away", "one last apple on the branch"), ("summer says goodbye.", "the path turns to gold.", "soon the snow will come.")),
    "winter": (("Snow on the old roof", "White and silent field", "Frost upon the glass"), ("a small light in the window", "only the fox leaves its tracks", "the kettle begins to sing"), ("someone is at home.", "the night is so still.", "spring is far away.")),
    "spring": (("The first green is here", "Ice melts on the stream", "A bird on the fence"), ("the bees have woken again", "a child runs out without shoes", "the garden remembers us"), ("how warm is the light.", "all doors stand open.", "it begins anew.")),
    "summer": (("Long days, short shadows", "Heat above the road", "Bees in the clover"), ("the cat sleeps under the bench", "somebody laughs by the lake", "the afternoon has no end"), ("I could stay right here.", "a plum, warm and sweet.", "even time is slow.")),
    "sea": (("Waves come and waves go", "A shell in the sand", "Salt wind on my face"), ("the lighthouse counts to itself", "far out there a sail turns round", "the gulls are telling old jokes"), ("the tide takes its time.", "the sea never sleeps.", "and then, only blue.")),
    "moon": (("The moon on the pond", "Round moon, quiet street", "Thin moon, like a boat"), ("a frog jumps and breaks the light", "the owl has opened its eyes", "the whole house is fast asleep"), ("and it heals again.", "nobody else sees.", "I wish it good night.")),
    "cat": (("The cat on the wall", "Two green eyes at dusk", "A tail and a yawn"), ("she has seen the bird go by", "the mouse has made other plans", "the sun moves, and so does she"), ("perhaps tomorrow.", "and then sleeps again.", "all is as it should.")),
    "model": (("A small model speaks", "Words wait in a row", "One token, then one"), ("the draft guesses, one, two, three", "the big one nods at each guess", "the target reads all at once"), ("nothing is changed.", "faster, and the same.", "the answer is here.")),
    "night": (("The street lamps come on", "Dark hill, one small light", "Stars above the roofs"), ("a dog barks and is quiet", "the river goes on talking", "the last train is far away"), ("sleep well, little town.", "I listen, awake.", "the night has no end.")),
    "tree": (("An old apple tree", "Roots deep in the ground", "One leaf, then the next"), ("a hundred summers stand here", "the wind asks and it answers", "children climb into its arms"), ("and it does not move.", "patient as a stone.", "shade for everyone.")),
}  # fmt: skip
RIDDLES: tuple[tuple[str, str], ...] = (
    ("What has keys but opens no door?", "a piano"), ("What has hands but cannot clap?", "a clock"),
    ("What gets wetter the more it dries?", "a towel"), ("What has a neck but no head?", "a bottle"),
    ("What has teeth but cannot bite?", "a comb"), ("What runs but has no legs?", "a river"),
    ("What has one eye but cannot see?", "a needle"), ("What goes up and never comes down?", "your age"),
    ("What has a face but no eyes?", "a clock"), ("What is full of holes and still holds water?", "a sponge"),
    ("What can you catch but not throw?", "a cold"), ("What has four legs but cannot walk?", "a table"),
    ("What has leaves but is no tree?", "a book"), ("What follows you all day and leaves at night?", "your shadow"),
    ("What breaks when you say its name?", "silence"), ("What has a bed but never sleeps?", "a river"),
    ("What is yours, but others use it more?", "your name"), ("What has ears but cannot hear?", "a cornfield"),
    ("I have no wings, but I fly, and no eyes, but I cry. What am I?", "a cloud"),
    ("What has cities but no houses?", "a map"), ("What is so light that nobody can hold it for long?", "your breath"),
    ("The more you take, the more you leave behind. What is it?", "footsteps"), ("What has a head and a tail but no body?", "a coin"),
    ("What comes once in a minute, twice in a moment, but never in an hour?", "the letter M"),
    ("What is black when clean and white when dirty?", "a blackboard"), ("What travels the world and stays in its corner?", "a stamp"),
    ("What guesses all day and is never angry when it is wrong?", "a draft model"),
)  # fmt: skip
_POEM_ASK = "{Write|Write me|Tell me|Give me|Make|I want|Can you write|Say|Compose|Please write|Can I have|Do you know} a {poem|poem|little poem|short poem|verse|rhyme|nice poem}"
_HAIKU_ASK = "{Write|Write me|Tell me|Give me|Make|I want|Can you write|Say|Compose|Please write} a haiku"
_RIDDLE_ASK = "{Tell me a riddle|A riddle|Riddle|Ask me a riddle|Give me a riddle|Do you know a riddle|Another riddle|I want a riddle|Riddle me this|A riddle please|Do you have a riddle|Can you give me a riddle}{.|?|!|}"
_GUESSES = entries(
    "a dog;a tree;the moon;water;a house;a car;fire;a mirror;a book;the wind;time;a door;a bird;love;a shoe;money"
)


def poem(rng: Random, theme: str) -> str:
    """Two rhymed pairs of lines about the theme."""
    couplets = rng.sample(COUPLETS.get(theme, ANY), 2)
    lines = [
        part for couplet in couplets for part in expand(rng, couplet, {"x": theme}).split("/")
    ]
    return "\n".join(line[:1].upper() + line[1:] for line in lines)


def haiku(rng: Random, theme: str) -> str:
    """Three lines drawn from the theme's, or from any theme when it has none."""
    parts = HAIKUS[theme if theme in HAIKUS else rng.choice(list(HAIKUS))]
    return "\n".join(rng.choice(part) for part in parts)


def any_riddle(rng: Random) -> Turn:
    """A riddle; the question is left to the caller."""
    riddle = rng.choice(RIDDLES)[0]
    return Turn("", riddle, riddle)


def _poem(rng: Random) -> list[Turn]:
    told = []
    for _ in range(rng.choice((1, 1, 2))):
        theme = rng.choice(
            list(COUPLETS) if rng.random() < 0.6 else rng.choice((ANIMALS, THINGS))
        )
        if rng.random() < 0.12 and theme not in COUPLETS:
            theme = f"{rng.choice(ADJECTIVES)} {theme}"
        the = rng.choice((f"the {theme}", article(theme), theme, f"the {theme}"))
        if theme in ("love", "friendship", "home", "spring", "summer", "autumn", "winter"):
            the = theme
        ask = f"{_POEM_ASK} {{about|on|about}} {the}{{.|?|}}"
        if told:
            ask = f"{{Now one about|And one about|Another one about|And about|One about}} {the}{{.|?|}}"
        elif rng.random() < 0.2:
            theme = rng.choice(list(COUPLETS))
            ask = f"{{{_POEM_ASK}|A poem|Poem please|Poem|Write something that rhymes|A rhyme please}}{{.|?|}}"
        text = poem(rng, theme)
        told.append(Turn(say(rng, ask), text, "\n".join(text.split("\n")[:2])))
    return told


def _haiku(rng: Random) -> list[Turn]:
    theme = rng.choice(list(HAIKUS))
    ask = (
        f"{_HAIKU_ASK}{{.|?|}}"
        if rng.random() < 0.3
        else f"{{{_HAIKU_ASK}|A haiku|Haiku}} about {rng.choice(('the ', '')) if theme not in ('autumn', 'winter', 'spring', 'summer') else ''}{theme}{{.|?|}}"
    )
    text = haiku(rng, theme)
    told = [Turn(say(rng, ask), text, text)]
    if rng.random() < 0.25:
        text = haiku(rng, rng.choice(list(HAIKUS)))
        told.append(
            Turn(say(rng, "{Another one|One more|Another haiku|Again}{.|}"), text, text)
        )
    return told


def _riddle(rng: Random) -> list[Turn]:
    riddle, answer = rng.choice(RIDDLES)
    slots = {"r": riddle, "y": answer}
    told = [
        Turn(
            say(rng, _RIDDLE_ASK),
            say(rng, "{<r>|<r>|Here is one: <r>|Try this one: <r>}", slots),
            riddle,
        )
    ]
    kind = rng.random()
    if kind < 0.4:
        ask = "{I don't know|I do not know|Tell me|What is the answer|The answer|I give up|No idea|Tell me the answer|What is it|dunno|Solution|Give me the answer|I have no idea}{.|?|}"
        told.append(
            Turn(
                say(rng, ask),
                say(
                    rng,
                    "{It is <y>.|The answer is <y>.|<y>!|It is <y>. Do you want another one?}",
                    slots,
                ),
                say(rng, "<y>.", slots),
            )
        )
    elif kind < 0.65:
        bare = answer.split(" ", 1)[-1]
        ask = rng.choice(
            (
                answer,
                f"is it {answer}?",
                bare,
                f"it is {answer}",
                f"{answer}?",
                f"I think it is {answer}",
            )
        )
        told.append(
            Turn(
                ask,
                say(
                    rng,
                    "{Yes, it is <y>!|That is right: <y>.|Correct! It is <y>.|Well done, it is <y>.} {|Another one?}",
                    slots,
                ),
                "Yes!",
            )
        )
    elif kind < 0.9:
        wrong = rng.choice(_GUESSES)
        if wrong != answer:
            ask = rng.choice(
                (
                    wrong,
                    f"is it {wrong}?",
                    f"{wrong}?",
                    f"I think it is {wrong}",
                    f"maybe {wrong}",
                )
            )
            told.append(
                Turn(
                    ask,
                    say(
                        rng,
                        "{No, it is <y>.|Not quite: it is <y>.|A good guess, but it is <y>.|No. The answer is <y>.}",
                        slots,
                    ),
                    say(rng, "No: <y>.", slots),
                )
            )
    return told


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A poem, a haiku or a riddle, with a follow-up now and then."""
    return rng.choice((_poem, _poem, _haiku, _riddle, _riddle))(rng)
